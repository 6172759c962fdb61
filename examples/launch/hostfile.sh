#!/usr/bin/env bash
# Train on the machines of a hostfile: starts several_nodes.sh on each of them over ssh, and ends with the first that fails.
#
#   HOSTFILE=hosts bash examples/launch/hostfile.sh --config run.yaml --save /shared/run
#
# A line of the hostfile is a host's name, as ssh and the other hosts know it; what follows it on the line (`slots=8` and
# the like) is ignored, and so are empty lines and comments. The first host is the meeting point. ssh must need no
# password, and this folder must be there on every host under the same path.
#
#   HOSTFILE    the file (default: hostfile)
#   PORT        of the meeting point (default: 29500)
#   SETUP       a shell command to run on each host first, such as: source /shared/venv/bin/activate
#   GPUS, RUN_ID, IFNAME, RESTARTS, WAIT, COMMAND as in several_nodes.sh
set -euo pipefail

HOSTFILE=${HOSTFILE:-hostfile}
mapfile -t hosts < <(sed -e 's/#.*//' "$HOSTFILE" | awk 'NF { print $1 }')
if ((${#hosts[@]} == 0)); then
  echo "HOSTFILE = $HOSTFILE names 0 hosts; give one host a line" >&2
  exit 2
fi

# Words are quoted for the shell at the other end.
words=$(printf ' %q' "$@")
settings="NODES=${#hosts[@]} MASTER=$(printf '%q' "${hosts[0]}:${PORT:-29500}")"
for name in GPUS RUN_ID IFNAME RESTARTS WAIT COMMAND; do
  if [[ -n ${!name:-} ]]; then
    settings+=" $name=$(printf '%q' "${!name}")"
  fi
done
here=$(printf '%q' "$PWD")

pids=()
stop() {
  # The ranks end with their terminal, unsaved: `kill -TERM` of torchrun on one host saves and stops the run.
  kill -TERM "${pids[@]}" 2>/dev/null || true
}
trap stop INT TERM

for index in "${!hosts[@]}"; do
  host=${hosts[index]}
  hosting=$((index == 0 ? 1 : 0))
  # -tt: when this end goes, the other end is told.
  ssh -tt -o BatchMode=yes "$host" \
    "cd $here && ${SETUP:-true} && HOSTS_MASTER=$hosting $settings bash examples/launch/several_nodes.sh$words" \
    </dev/null > >(sed -u "s/^/$host: /") 2>&1 &
  pids+=($!)
done

# The first failure ends the others: they would only wait for it until the timeout.
code=0
for _ in "${hosts[@]}"; do
  wait -n "${pids[@]}" || { code=$?; stop; break; }
done
wait || true
exit "$code"
