#!/usr/bin/env bash
# Train on several machines without a scheduler: run this same command on every one of them.
#
#   NODES=4 MASTER=node0.cluster:29500 bash examples/launch/several_nodes.sh --config run.yaml ...
#
# The machines need the same code, the same environment, and a folder they all see for the corpus and the checkpoints
# (every rank writes its own part of a checkpoint; the ranks then agree that it is whole).
#
#   NODES    machines in the run
#   MASTER   host:port of one of them, the meeting point; the port must be free there and open to the others
#   GPUS     processes on each machine (default: what nvidia-smi lists)
#   RUN_ID   any word, the same on all machines, another one for another run (default: megatron_tlm)
set -euo pipefail

: "${NODES:?NODES is not set; give the number of machines}"
: "${MASTER:?MASTER is not set; give host:port of one of the machines}"
GPUS=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)}

# Which network interface to use is guessed by NCCL; on a machine with several, name it.
#   export NCCL_SOCKET_IFNAME=eth0
# The c10d rendezvous hands out the node ranks, so no machine has to be told its number. Nodes number off in the order
# in which they arrive, and that order may differ from run to run: checkpoints do not care, they are free of the layout.
exec torchrun \
  --nnodes "$NODES" \
  --nproc-per-node "$GPUS" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$MASTER" \
  --rdzv-id "${RUN_ID:-megatron_tlm}" \
  -m megatron_tlm train "$@"
