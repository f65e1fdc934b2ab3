"""The example's job in a real Slurm on two machines, which are namespaces of this one."""

import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.examples.deployment.builders import DEPLOYMENT, missing, run_on_machines
from tests.kit.project import make_project, sample, write_samples

EXAMPLE = DEPLOYMENT / "slurm"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "sinfo")
WITHOUT = ", ".join(name for name in PROGRAMS if shutil.which(name) is None)
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=first(10.77.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=first NodeAddr=10.77.0.1 CPUs=2 RealMemory=4000
NodeName=second NodeAddr=10.77.0.2 CPUs=2 RealMemory=4000
PartitionName=all Nodes=first,second Default=YES MaxTime=INFINITE State=UP
"""
FIRST = """\
export SLURM_CONF={folder}/slurm.conf
slurmctld -D > slurmctld.log 2>&1 &
slurmd -D -N first > slurmd-first.log 2>&1 &
waited=0
until [ "$(sinfo --noheader --states=idle --format=%D 2> /dev/null)" = 2 ]; do
    waited=$((waited + 1))
    [ $waited -lt 120 ] || {{ cat *.log; exit 70; }}
    sleep 0.5
done
"""
SECOND = "exec env SLURM_CONF={folder}/slurm.conf slurmd -D -N second\n"
# What this machine has, in place of the example's machines; a line marked EDIT may be taken out.
SIZE = "--cpus-per-task=2"
SAMPLES = 600
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def small_job(folder: Path) -> None:
    """The user's folder: a project with .venv and the example's job, without its GPUs."""
    ray = {"address": "auto", "workers": 2, "cpus": 1, "gpus": 0}
    make_project(folder, samples=8, shards=2, execution={"ray": ray})
    write_samples(folder / "long.jsonl", [sample(number, sentences=40) for number in range(SAMPLES)])
    (folder / ".venv").symlink_to(sys.prefix)
    lines = (EXAMPLE / "gateau.sbatch").read_text().splitlines(keepends=True)
    gpus = [line for line in lines if line.startswith("#SBATCH --gpus-per-node")]
    assert len(gpus) == 1 and "EDIT" in gpus[0]
    (folder / "gateau.sbatch").write_text("".join(line for line in lines if line not in gpus))


@pytest.mark.skipif(bool(WITHOUT), reason=f"not installed: {WITHOUT} (apt-get install slurmctld slurmd slurm-client)")
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_job_whose_time_is_over_saves_its_rows_the_next_goes_on_and_a_bad_one_fails(tmp_path: Path) -> None:
    """The signal is the one that Slurm sends by `--signal`. Here Slurm does without control groups, which would end the
    second machine's Ray node with the job; it ends itself after a minute without the first.
    """
    small_job(tmp_path)
    (tmp_path / "slurm.conf").write_text(CONFIGURATION.format(folder=tmp_path))
    jobs = f"""\
sbatch {SIZE} gateau.sbatch gateau.yaml --until selected_subset
until grep -q "✓ raw_long_sft" gateau-1.0.log; do squeue --noheader | grep -q . || exit 71; sleep 0.5; done
sleep 4
scancel --batch --signal=TERM 1
while squeue --noheader | grep -q .; do sleep 0.5; done
ls store > after-1
sleep 80
sbatch --wait {SIZE} gateau.sbatch gateau.yaml --until selected_subset
sbatch --wait {SIZE} gateau.sbatch missing.yaml || exit 0
exit 72
"""
    done = run_on_machines(
        tmp_path,
        {"first": (FIRST + jobs).format(folder=tmp_path), "second": SECOND.format(folder=tmp_path)},
        seconds=1000,
    )
    logs = [file.read_text(errors="replace") for file in sorted(tmp_path.glob("gateau-*.0.log"))]
    assert done.returncode == 0, done.stdout + "".join(logs)
    assert "Connected to Ray cluster" in logs[0]
    assert "Command failed with return code 143" in logs[0]
    assert "combined_scores" not in (tmp_path / "after-1").read_text()
    assert "✓ combined_scores" in logs[1] and "process was gone" not in logs[1], "the first one is on record as ended"
    assert pl.read_parquet(tmp_path / "store" / "selected_subset.parquet").height == SAMPLES // 4
    assert "missing.yaml" in logs[2]
