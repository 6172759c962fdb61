#!/usr/bin/env bash
# Train on several machines without a scheduler: run this same command on every one of them.
#
#   NODES=4 MASTER=node0.cluster:29500 bash examples/launch/several_nodes.sh --config run.yaml ...
#
# The machines need the same code, the same environment, and one folder they all see for --save (every rank writes its
# own part of a checkpoint). Corpora may lie on each machine's own disk. See docs/launch.md.
#
#   NODES       machines in the run
#   MASTER      host:port of one of them, the meeting point; the port must be free there and open to the others
#   GPUS        processes on each machine (default: what nvidia-smi lists)
#   RUN_ID      any word, the same on all machines, another one for another run (default: megatron_tlm)
#   IFNAME      network interface that the machines share (default: the libraries guess)
#   ADDRESS     this machine's address for the others, where its own name does not resolve to it (default: its name)
#   RESTARTS    how often all ranks are started again after a failure (default: 0); give --save and --load then
#   WAIT        seconds to wait for the other machines to start (default: 300)
#   COMMAND     what to run on the ranks: train, or doctor for a rehearsal of half a minute (default: train)
#   HOSTS_MASTER  1 on the machine that hosts the meeting point and 0 on others, where torchrun cannot tell by its name
set -euo pipefail

: "${NODES:?NODES is not set; give the number of machines}"
: "${MASTER:?MASTER is not set; give host:port of one of the machines}"
GPUS=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)}
if ((GPUS == 0)); then
  echo "GPUS = 0 processes cannot train; no GPU was found here, set GPUS to start ranks on the CPU" >&2
  exit 2
fi

# NCCL and gloo guess an interface each; on a machine with several, name it.
if [[ -n ${IFNAME:-} ]]; then
  export NCCL_SOCKET_IFNAME=$IFNAME GLOO_SOCKET_IFNAME=$IFNAME
fi

# torchrun itself waits in silence for a master that is not there, or fails with a page of text where the port is taken:
# ask first. `doctor` says in a sentence what is wrong, and ends this script.
megatron-tlm doctor --nnodes "$NODES" --rdzv-endpoint "$MASTER" --wait "${WAIT:-300}"

# A restarted run meets at a store of its own: without this, torch 2.13 hands it the addresses of the ranks that died.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# The c10d rendezvous hands out the node ranks, so no machine has to be told its number. Nodes number off in the order
# in which they arrive, and that order may differ from run to run: checkpoints do not care, they are free of the layout.
# join_timeout bounds the wait for all machines, read_timeout that for an answer of the meeting point.
exec torchrun \
  --nnodes "$NODES" \
  --nproc-per-node "$GPUS" \
  --max-restarts "${RESTARTS:-0}" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$MASTER" \
  --rdzv-id "${RUN_ID:-megatron_tlm}" \
  --rdzv-conf "join_timeout=${WAIT:-300},read_timeout=60${HOSTS_MASTER:+,is_host=$HOSTS_MASTER}" \
  ${ADDRESS:+--local-addr "$ADDRESS"} \
  -m megatron_tlm "${COMMAND:-train}" "$@"
