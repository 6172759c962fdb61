#!/usr/bin/env bash
# Train on the GPUs of one machine.
#
#   bash examples/launch/one_node.sh --config run.yaml --data-path corpus_text_document --save checkpoints
#
# Everything after the script's name goes to `megatron-tlm train` as it is. Underneath is plain torchrun, nothing more:
# copy the last command into your own script and forget this one.
#
#   GPUS        processes to start, one a GPU (default: what nvidia-smi lists; without GPUs give a number, they run on CPU)
#   RESTARTS    how often torchrun starts all ranks again after a failure (default: 0); give --save and --load then
#   COMMAND     what to run on the ranks: train, or doctor for a rehearsal of half a minute (default: train)
set -euo pipefail

if [[ -z ${GPUS:-} ]]; then
  GPUS=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
fi
if ((GPUS == 0)); then
  echo "GPUS = 0 processes cannot train; no GPU was found here, set GPUS to start ranks on the CPU" >&2
  exit 2
fi

# A restarted run meets at a store of its own: without this, torch 2.13 hands it the addresses of the ranks that died.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# The world size must be tensor degree x pipeline degree x data degree. Tensor ranks are neighbours (0 1 | 2 3 | ...), so
# a tensor degree of at most GPUS keeps its chatter on the machine's fast links. Stages are furthest apart.
# --standalone picks a free port for the meeting point by itself, so two runs on one machine do not collide.
exec torchrun --standalone --nproc-per-node "$GPUS" --max-restarts "${RESTARTS:-0}" \
  -m megatron_tlm "${COMMAND:-train}" "$@"
