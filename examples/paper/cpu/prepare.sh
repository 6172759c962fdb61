#!/usr/bin/env bash
# The text of the cpu studies: every twentieth document of the public-domain corpus is held out for validation, the
# tokenizer sees the others alone. Run it where the studies will run; they look for runs/paper-cpu.
set -euo pipefail

corpus=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../data" && pwd)/public_domain.jsonl.gz
folder=runs/paper-cpu
mkdir -p "$folder"

gzip -dc "$corpus" | awk 'NR % 20 != 0' >"$folder/train.jsonl"
gzip -dc "$corpus" | awk 'NR % 20 == 0' >"$folder/heldout.jsonl"
megatron-tlm tokenizer train --input "$folder/train.jsonl" --model-prefix "$folder/tokenizer" --vocab-size 2048
for part in train heldout; do
  megatron-tlm preprocess --input "$folder/$part.jsonl" --output-prefix "$folder/$part" --append-eod --workers 1 \
    --tokenizer-model "$folder/tokenizer.model"
done
