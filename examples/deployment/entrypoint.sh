#!/bin/sh
# The image's entrypoint. With GATEAU_RAY_HEAD=host:6379 this machine becomes a node of that Ray cluster before the
# command starts: `execution.ray: {address: auto}` finds the cluster through it. It gives no cores and no GPUs: those are
# for what Dagster itself runs here, a training for one.
set -eu
if [ -n "${GATEAU_RAY_HEAD:-}" ]; then
    ray start --address="$GATEAU_RAY_HEAD" --num-cpus=0 --num-gpus=0 --object-store-memory=100000000
fi
exec "$@"
