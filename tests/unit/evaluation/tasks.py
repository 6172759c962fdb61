"""Three local tasks of lm-evaluation-harness: a folder of YAML files and the JSON lines that they read."""

import json
from pathlib import Path
from typing import Any

QUESTIONS: list[dict[str, Any]] = [
    {"q": "wide below,", "choices": [" narrow", " wide", " é"], "answer": 0},
    {"q": "the total", "choices": [" unchanged", " gone", " x", " yz"], "answer": 1},
    {"q": "a rather long question that does not fit into thirty-two bytes", "choices": [" a", " bc"], "answer": 1},
    {"q": "", "choices": ["first", "second"], "answer": 0},
]
TEXTS = ("wide below, narrow above; the total unchanged, and then some", "ä€ short", "")
STARTS = ("the sea", "wide", "a rather long start that is not going to fit")

_CHOICES = """\
task: tiny_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
_TEXTS = """\
task: tiny_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/texts.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""
_WRITING = """\
task: tiny_writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/starts.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs: {{until: ["e"], max_gen_toks: 8, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


def write_tasks(folder: Path) -> Path:
    """The folder itself, to give as --include-path."""
    records: dict[str, list[dict[str, Any]]] = {
        "choices": QUESTIONS,
        "texts": [{"text": text} for text in TEXTS],
        "starts": [{"text": text} for text in STARTS],
    }
    for name, lines in records.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, text in (("choices", _CHOICES), ("texts", _TEXTS), ("writing", _WRITING)):
        (folder / f"{name}.yaml").write_text(text.format(folder=folder))
    return folder
