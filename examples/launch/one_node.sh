#!/usr/bin/env bash
# Train on the GPUs of one machine.
#
#   bash examples/launch/one_node.sh --config run.yaml --data-path corpus_text_document --save checkpoints
#
# Everything after the script's name goes to `megatron-tlm train` as it is. Underneath is plain torchrun, nothing more:
# copy the last command into your own script and forget this one.
#
#   GPUS   processes to start, one a GPU (default: what nvidia-smi lists; without GPUs give a number, they run on CPU)
set -euo pipefail

if [[ -z ${GPUS:-} ]]; then
  GPUS=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
fi
if ((GPUS == 0)); then
  echo "GPUS = 0 processes cannot train; no GPU was found here, set GPUS to start ranks on the CPU" >&2
  exit 2
fi

# The world size must be tensor degree x pipeline degree x data degree. Tensor ranks are neighbours (0 1 | 2 3 | ...), so
# a tensor degree of at most GPUS keeps its chatter on the machine's fast links. Stages are furthest apart.
# --standalone picks a free port for the meeting point by itself, so two runs on one machine do not collide.
exec torchrun --standalone --nproc-per-node "$GPUS" -m megatron_tlm train "$@"
