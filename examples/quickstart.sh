#!/usr/bin/env bash
# The whole main path on a small machine, without a GPU: real text, a tokenizer, a plan, a tapered model trained on four
# ranks, interrupted and resumed, held-out perplexity, a checkpoint in another layout, and text out of it.
#
#   bash examples/quickstart.sh
#
#   TLM_QUICKSTART_DIR  where everything goes  (default: runs/quickstart)
#   TLM_VENV            the Python environment (default: .venv), made when absent
#
# Run it again and it goes on after the last chapter that was finished; remove the folder to start over.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
config=$root/examples/configs/quickstart.yaml
corpus=$root/examples/data/public_domain.jsonl.gz
mkdir -p "${TLM_QUICKSTART_DIR:=$root/runs/quickstart}"
run=$(cd "$TLM_QUICKSTART_DIR" && pwd)
stop_after=130

# Four ranks share this machine's cores: one thread each.
export OMP_NUM_THREADS=1

say() { printf '%s\n' "$*"; }

chapter() { printf '\n\033[1m[%d:%02d] %s\033[0m\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# A chapter is finished when it was done with these very inputs: finished NAME FILE..., mark NAME FILE...
fingerprint() { cat "$@" | sha256sum; }
finished() { [[ -f $run/.done-$1 && $(<"$run/.done-$1") == "$(fingerprint "${@:2}")" ]] && say "already there"; }
mark() { fingerprint "${@:2}" >"$run/.done-$1"; }

# A start prints its configuration and the plan once more: both have been seen here.
from_the_model_on() { sed -u -n '/^model: [0-9]/,$p'; }

# The newest step in the metrics, 0 before the first: the log writes one line a step.
last_step() { if [[ -f $run/logs/metrics.jsonl ]]; then grep -c '"loss"' "$run/logs/metrics.jsonl" || true; else echo 0; fi; }

chapter "1/8 The environment"
bash "$root/tools/setup_environment.sh"
export PATH="${TLM_VENV:-$root/.venv}/bin:$PATH"

chapter "2/8 Text to tokens: one document in twenty is held out"
if ! finished data "$corpus"; then
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
  --save "$run/checkpoints"
  --log-dir "$run/logs"
)
# --standalone finds a free port for the ranks' meeting point by itself.
trainer=(torchrun --standalone --nproc-per-node 4 -m megatron_tlm train "${options[@]}")

chapter "3/8 The plan: each layer's width, the stages and their cost, before any process starts"
megatron-tlm plan "${options[@]}"

chapter "4/8 Training on four ranks, tensor 2 x pipeline 2, ZeRO-1; SIGTERM comes after step $stop_after"
if ! finished training "$config" "$corpus"; then
  rm -rf "$run/checkpoints" "$run/converted" "$run/logs"
  "${trainer[@]}" > >(from_the_model_on) 2>"$run/interrupted.txt" &
  pid=$!
  trap 'kill "$pid" 2>/dev/null || true' EXIT
  until (($(last_step) >= stop_after)); do
    if ! kill -0 "$pid" 2>/dev/null; then
      cat "$run/interrupted.txt" >&2
      say "quickstart: training ended after $(last_step) of $stop_after steps; what it said is above" >&2
      exit 1
    fi
    sleep 0.2
  done
  # What a scheduler does before it takes a node away. The ranks finish their step, save and leave; torchrun itself
  # reports the signal, which goes to a file.
  kill -TERM "$pid"
  wait "$pid" || say "torchrun ended with exit code $?, as it does on a signal; its own words are in $run/interrupted.txt"
  trap - EXIT

  chapter "5/8 Resumed: the same command with --load goes on after step $(last_step)"
  "${trainer[@]}" --load "$run/checkpoints" | from_the_model_on
  mark training "$config" "$corpus"
fi

chapter "6/8 Perplexity on the held-out documents"
megatron-tlm evaluate --load "$run/checkpoints" --data-path "$run/heldout_text_document"

chapter "7/8 The same checkpoint in another layout: tensor 2 x pipeline 2 becomes tensor 4 x pipeline 1"
rm -rf "$run/converted"
megatron-tlm convert --load-dir "$run/checkpoints" --save-dir "$run/converted" \
  --target-tensor-parallel-size 4 --target-pipeline-parallel-size 1

chapter "8/8 Text from the converted checkpoint"
megatron-tlm generate --load "$run/converted" --prompt "And the LORD said unto" --max-new-tokens 60 \
  --temperature 0.8 --top-k 40

chapter "Done"
python - "$run/logs/metrics.jsonl" <<'PYTHON'
import json, sys
records = [json.loads(line) for line in open(sys.argv[1])]
losses = [record["loss"] for record in records if "loss" in record]
valid = [record["valid_loss"] for record in records if "valid_loss" in record]
print(f"training loss    {losses[0]:.3f} at step 1, {sum(losses[-20:]) / 20:.3f} over the last 20 of {len(losses)} steps")
print(f"validation loss  {', '.join(f'{loss:.3f}' for loss in valid)}")
PYTHON
cat <<END
by hand          source ${TLM_VENV:-$root/.venv}/bin/activate, and megatron-tlm --help works in this shell
loss plot        $run/logs/loss.png
every step       $run/logs/metrics.jsonl
TensorBoard      tensorboard --logdir $run/logs/tensorboard
configuration    $run/logs/config.yaml
checkpoints      $run/checkpoints, and converted in $run/converted
END
