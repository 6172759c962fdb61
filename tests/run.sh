#!/usr/bin/env bash
# Makes the environment and runs every check: lint, format, types, tests.
#
#   bash tests/run.sh [PYTEST ARGUMENT ...]      such as: bash tests/run.sh tests/unit -k taper
#
#   TLM_VENV    folder of the environment (default: .venv); made when absent, reused while pyproject.toml is unchanged
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_environment.sh test
export PATH="${TLM_VENV:-$PWD/.venv}/bin:$PATH"

# The tests start up to four ranks at once. One thread each keeps small machines from thrashing, and makes sums come
# out in the same order whatever the number of cores.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# No test needs the network: a library that would quietly fetch a model fails at once instead.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

# Each of these ends the run where it fails, so that pytest's closing line, the last one, stands for all of them.
ruff check .
ruff format --check .
mypy --strict megatron_tlm

# Files are shared out whole, so that what a file sets up once is set up once.
exec python -m pytest -q --durations=15 --numprocesses auto --maxprocesses 4 --dist loadfile "$@"
