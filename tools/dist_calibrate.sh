#!/usr/bin/env bash
# Calibrate a checkpoint on many GPUs, or on many processes of a machine without one.
# Usage: tools/dist_calibrate.sh CONFIG CHECKPOINT GPUS --out FILE [arguments of tools/calibrate.py]
# On several machines, run it on each with NNODES, NODE_RANK, MASTER_ADDR and PORT set.
set -euo pipefail

if [ $# -lt 3 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
CONFIG=$1
CHECKPOINT=$2
GPUS=$3
TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

PYTHONPATH="$TOOLS/..:${PYTHONPATH:-}" \
python "$TOOLS/torchrun.py" \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$GPUS" \
    "$TOOLS/calibrate.py" "$CONFIG" "$CHECKPOINT" --launcher pytorch "${@:4}"
