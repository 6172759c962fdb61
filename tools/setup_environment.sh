#!/usr/bin/env bash
# Makes the Python environment that the quickstart and the tests share, or reuses it, and prints nothing but progress.
#
#   bash tools/setup_environment.sh [EXTRA]      EXTRA: an extra of pyproject.toml, such as `test`
#
#   TLM_VENV    folder of the environment        (default: .venv beside this checkout's pyproject.toml)
#   TLM_PYTHON  interpreter to make it with      (default: the first of python3, python3.13 ... 3.11 that is 3.11 or newer)
#   TLM_TORCH   what to install as torch         (default: torch==2.13.0)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${TLM_VENV:-$root/.venv}
extra=${1:-}
started=$SECONDS

say() { printf '[environment %3ds] %s\n' "$((SECONDS - started))" "$*"; }

find_python() {
  local candidate
  for candidate in ${TLM_PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "python = $(python3 --version 2>&1 || true) is older than 3.11; install Python 3.11 or name one in TLM_PYTHON" >&2
  return 1
}

# The stamp says for which project file, checkout and extra the environment was made. The path is in it because the
# install is editable: an environment shared by two checkouts has to follow the one that asks.
stamp=$venv/megatron_tlm-${extra:-base}.stamp
wanted=$(cat "$root/pyproject.toml" <(echo "$root") | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  say "reusing $venv"
  exit 0
fi

if [[ ! -x $venv/bin/python ]]; then
  python=$(find_python)
  say "making $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi

pip_install() { "$venv/bin/python" -m pip install --quiet --quiet --progress-bar off --disable-pip-version-check "$@"; }

# torch comes first and alone, with its version exact. Left to the range in pyproject.toml, pip takes the newest build
# it knows, on Linux one with some GB of CUDA libraries. Where a CPU build of this version is at hand (a wheel folder in
# pip's find-links, say), the exact pin takes that one, and all that follows is content with it. A torch that is
# already in the environment is left alone.
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  say "installing ${TLM_TORCH:=torch==2.13.0}"
  pip_install "$TLM_TORCH"
fi

say "installing megatron_tlm${extra:+[$extra]} and what it needs"
pip_install --editable "$root${extra:+[$extra]}"

rm -f "$venv"/megatron_tlm-*.stamp
echo "$wanted" >"$stamp"
# Every extra contains the base, so an environment made for the tests serves the quickstart as well.
echo "$wanted" >"$venv/megatron_tlm-base.stamp"
say "ready: $venv"
