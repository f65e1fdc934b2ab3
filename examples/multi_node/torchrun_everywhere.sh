#!/bin/bash
# torchrun_everywhere.sh HEAD OTHER... MODULE SPEC: eight ranks on each machine, on this one (HEAD) without ssh.
# Ends as soon as one machine does, and ends the others then.
set -u
hosts=("${@:1:$#-2}")
module=${*: -2:1}
spec=${*: -1}
torchrun=$(dirname "$(command -v python)")/torchrun
[ -x .venv/bin/torchrun ] && torchrun=$PWD/.venv/bin/torchrun

ranks() { # number of the machine
  echo "cd '$PWD' && exec '$torchrun' --nnodes=${#hosts[@]} --node-rank=$1 --nproc-per-node=${GPUS:-8}" \
    "--rdzv-backend=c10d --rdzv-id=gateau --rdzv-endpoint=${hosts[0]}:${PORT:-29500} -m '$module' '$spec'"
}

bash -c "$(ranks 0)" &
for number in $(seq 1 $((${#hosts[@]} - 1))); do
  ssh -tt -o BatchMode=yes "${hosts[$number]}" "$(ranks "$number")" </dev/null & # -tt: its end ends the ranks there
done
trap 'kill $(jobs -p) 2>/dev/null; wait; exit 143' TERM INT
wait -n
status=$?
[ $status -eq 0 ] && { wait; exit 0; }
kill $(jobs -p) 2>/dev/null
wait
exit $status
