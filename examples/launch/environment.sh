#!/usr/bin/env bash
# Train from the environment variables that cluster schedulers give each pod or task: Kubernetes' Indexed Jobs, Kubeflow's
# PyTorchJob, Volcano, MPI-like launchers. One container a node, this as its command:
#
#   bash examples/launch/environment.sh --config /config/run.yaml --save /shared/run --load /shared/run --allow-fresh-start
#
#   NNODES          nodes of the run (or WORLD_SIZE, as PyTorchJob counts its pods)
#   NODE_RANK       this node's number from 0 (or JOB_COMPLETION_INDEX of an Indexed Job, or RANK)
#   MASTER_ADDR     host name or address of node 0: for an Indexed Job, <job>-0.<headless service>
#   MASTER_PORT     its port (default: 29500)
#   NPROC_PER_NODE  processes on each node (default: what nvidia-smi lists)
#   IFNAME, RUN_ID, RESTARTS, WAIT, COMMAND as in several_nodes.sh
set -euo pipefail

NNODES=${NNODES:-${WORLD_SIZE:-}}
NODE_RANK=${NODE_RANK:-${JOB_COMPLETION_INDEX:-${RANK:-}}}
: "${NNODES:?NNODES is not set; give the number of nodes}"
: "${NODE_RANK:?NODE_RANK is not set; give the number of this node, from 0 on}"
: "${MASTER_ADDR:?MASTER_ADDR is not set; give the host of node 0}"
MASTER=$MASTER_ADDR:${MASTER_PORT:-29500}
GPUS=${NPROC_PER_NODE:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)}
if ((GPUS == 0)); then
  echo "NPROC_PER_NODE = 0 processes cannot train; no GPU was found here, set it to start ranks on the CPU" >&2
  exit 2
fi
# They describe nodes here; torchrun gives every rank its own.
unset RANK WORLD_SIZE LOCAL_RANK

if [[ -n ${IFNAME:-} ]]; then
  export NCCL_SOCKET_IFNAME=$IFNAME GLOO_SOCKET_IFNAME=$IFNAME
fi

# Wrong node rank, unknown or unreachable master, port taken: told here in a sentence. A pod may start minutes after
# another one, and its name resolve later still, hence the wait.
megatron-tlm doctor --nnodes "$NNODES" --node-rank "$NODE_RANK" --rdzv-endpoint "$MASTER" --wait "${WAIT:-600}"

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Who hosts the meeting point is said (is_host), not found out: a pod's own name may not be the one it is known by.
exec torchrun \
  --nnodes "$NNODES" \
  --nproc-per-node "$GPUS" \
  --max-restarts "${RESTARTS:-0}" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$MASTER" \
  --rdzv-id "${RUN_ID:-megatron_tlm}" \
  --rdzv-conf "is_host=$((NODE_RANK == 0 ? 1 : 0)),join_timeout=${WAIT:-600},read_timeout=60" \
  --local-addr "${POD_IP:-$(hostname -i | awk '{ print $1 }')}" \
  -m megatron_tlm "${COMMAND:-train}" "$@"
