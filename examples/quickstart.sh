#!/usr/bin/env bash
# The whole main path on a small machine: real text, a tokenizer, a plan, a tapered model trained on four ranks,
# a crash and a resume, held-out perplexity, a checkpoint in another layout, and text out of it. No GPU needed.
#
#   bash examples/quickstart.sh
#
#   TLM_QUICKSTART_DIR  where everything goes  (default: runs/quickstart)
#   TLM_VENV            the Python environment (default: .venv), made when absent
#
# Run it again and it goes on after the last step that was finished; remove the folder to start over.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
run=${TLM_QUICKSTART_DIR:-$root/runs/quickstart}
mkdir -p "$run"
run=$(cd "$run" && pwd)
corpus=$root/examples/data/public_domain.jsonl.gz
config=$root/examples/configs/quickstart.yaml
crash_step=130

say() { printf '%s\n' "$*"; }

chapter() { printf '\n\033[1m[%d:%02d] %s\033[0m\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# finished NAME FILE...: true where the step NAME was done from these very files. mark NAME FILE...: it now is.
fingerprint() { cat "$@" | sha256sum | cut -d' ' -f1; }
finished() { [[ -f $run/.done-$1 && $(<"$run/.done-$1") == $(fingerprint "${@:2}") ]]; }
mark() { fingerprint "${@:2}" >"$run/.done-$1"; }

# last_step: the newest step in the run's metrics, 0 before the first.
last_step() { sed -n 's/.*"step": *\([0-9]*\).*/\1/p' "$run/logs/metrics.jsonl" 2>/dev/null | tail -n 1 | grep . || echo 0; }

chapter "1/8 Environment"
bash "$root/tools/setup_environment.sh"
export PATH="${TLM_VENV:-$root/.venv}/bin:$PATH"

chapter "2/8 Text: 4,505 documents, one in twenty held out; a tokenizer of 4,096 pieces; Megatron's .bin/.idx"
if finished data "$corpus"; then
  say "already there"
else
  # Streams never hold the corpus whole, here as in the package.
  gzip -dc "$corpus" | awk 'NR % 20 != 0' >"$run/train.jsonl"
  gzip -dc "$corpus" | awk 'NR % 20 == 0' >"$run/heldout.jsonl"
  megatron-tlm tokenizer train --input "$run/train.jsonl" --model-prefix "$run/tokenizer" --vocab-size 4096
  for part in train heldout; do
    megatron-tlm preprocess --input "$run/$part.jsonl" --output-prefix "$run/$part" --append-eod --workers 2 \
      --tokenizer-type SentencePieceTokenizer --tokenizer-model "$run/tokenizer.model"
  done
  mark data "$corpus"
fi

options=(
  --config "$config"
  --train-data-path "$run/train_text_document"
  --valid-data-path "$run/heldout_text_document"
  --tokenizer-model "$run/tokenizer.model"
)

chapter "3/8 Plan: each layer's width, the stages and what they cost, before any process starts"
megatron-tlm plan "${options[@]}"

# Four ranks on this machine; --standalone finds a free port by itself.
trainer=(
  torchrun --standalone --nproc-per-node 4 -m megatron_tlm train "${options[@]}"
  --save "$run/checkpoints" --log-dir "$run/logs"
)

chapter "4/8 Training: tensor 2 x pipeline 2 under ZeRO-1, killed after step $crash_step"
if finished training "$config" "$run/.done-data"; then
  say "already there"
else
  rm -rf "$run/checkpoints" "$run/logs" "$run/logs-until-the-crash" "$run/converted"
  "${trainer[@]}" 2>"$run/crash.txt" &
  pid=$!
  trap 'kill "$pid" 2>/dev/null || true' EXIT
  until (($(last_step) >= crash_step)); do
    kill -0 "$pid" 2>/dev/null || { cat "$run/crash.txt" >&2; say "training ended before step $crash_step" >&2; exit 1; }
    sleep 0.2
  done
  kill -TERM "$pid"
  wait "$pid" || say "killed after step $(last_step), with exit code $?; what torchrun said of it is in $run/crash.txt"
  trap - EXIT
  cp -r "$run/logs" "$run/logs-until-the-crash"

  chapter "5/8 Resuming: the same command with --load, from the newest complete checkpoint ($(<"$run/checkpoints/latest"))"
  "${trainer[@]}" --load "$run/checkpoints"
  mark training "$config" "$run/.done-data"
fi
