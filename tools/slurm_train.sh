#!/usr/bin/env bash
# Train under Slurm.
# Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]
# GPUS (8), GPUS_PER_NODE (GPUS, at most 8), CPUS_PER_TASK (5) and SRUN_ARGS are read from the environment.
set -euo pipefail

if [ $# -lt 4 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
PARTITION=$1
JOB_NAME=$2
CONFIG=$3
WORK_DIR=$4
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-$((GPUS < 8 ? GPUS : 8))}
TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# SRUN_ARGS holds several arguments, so it is left to split.
# shellcheck disable=SC2086
PYTHONPATH="$TOOLS/..:${PYTHONPATH:-}" \
srun -p "$PARTITION" \
    --job-name="$JOB_NAME" \
    --gres=gpu:"$GPUS_PER_NODE" \
    --ntasks="$GPUS" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    python -u "$TOOLS/train.py" "$CONFIG" --work-dir "$WORK_DIR" --launcher slurm "${@:5}"
