"""`megatron-tlm COMMAND ...`: finds the command, and turns its mistakes into one line and an exit code.

Commands are imported when called, so that `--help` and `plan` wait for no torch.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from megatron_tlm import __version__
from megatron_tlm.cli.failure import USER_ERROR, report
from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.config.values import is_text
from megatron_tlm.errors import ConfigError, TlmError

INTERRUPTED = 130

# Threads of OpenMP that wait for each other spin, and on a busy machine take from one another the time to finish:
# a step of the tiny preset took 7 s on two contended cores, and 0.6 s with threads that sleep. Ranks of torchrun have
# one thread each and nothing to wait for.
OPENMP_DEFAULTS = {"OMP_WAIT_POLICY": "passive"}

# Command -> what it does; each is `main(arguments)` of the module of that name in this room.
COMMANDS = {
    "plan": "print a model's widths, units and stages and what they cost; no GPU, no processes",
    "tokenizer": "train a SentencePiece tokenizer, or see what one does to a text",
    "preprocess": "text to Megatron's .bin/.idx",
    "data": "look at, check, merge and cut .bin/.idx pairs",
    "doctor": "what would keep a run from starting, on this node or on all ranks together",
    "train": "train, on one process or under torchrun",
    "report": "a run, or several over each other, as one HTML page",
    "evaluate": "perplexity of a checkpoint on pairs and texts, and tasks of lm-evaluation-harness",
    "needle": "values hidden in long texts, and whether a checkpoint finds them",
    "novelty": "how new what each layer writes is, over depth",
    "generate": "continue a prompt from a checkpoint",
    "study": "many runs compared fairly: grid x seeds, equal budgets, one report",
    "convert": "rewrite a checkpoint for another layout",
    "inspect": "what a checkpoint is, what it lacks, in what it differs from another",
    "export": "a checkpoint as a Hugging Face directory or a GGUF file",
    "import": "a Hugging Face model as a checkpoint to train on",
}

# A word of the language cannot name a module that others import.
MODULES = {"import": "import_model"}

HELP = f"""\
usage: megatron-tlm COMMAND [flags]      or   python -m megatron_tlm COMMAND [flags]

Train Tapered Language Models: wide MLPs at the bottom, narrow ones at the top, the total unchanged.

commands:
{{commands}}

examples, from text to text:
  megatron-tlm tokenizer train --input corpus.jsonl --model-prefix tok --vocab-size 2048
  megatron-tlm preprocess --input corpus.jsonl --output-prefix corpus --append-eod --workers 2 \\
      --tokenizer-type SentencePieceTokenizer --tokenizer-model tok.model
  megatron-tlm plan --preset tiny --pipeline-model-parallel-size 2
  torchrun --standalone --nproc-per-node 4 -m megatron_tlm train --preset tiny --tokenizer-model tok.model \\
      --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
      --data-path corpus_text_document --save checkpoints --save-interval 100 --log-dir logs
  megatron-tlm evaluate --load checkpoints --data-path corpus_text_document
  megatron-tlm generate --load checkpoints --prompt "Once upon a time"
  megatron-tlm convert --load-dir checkpoints --save-dir one-rank \\
      --target-tensor-parallel-size 1 --target-pipeline-parallel-size 1
  megatron-tlm inspect checkpoints
  megatron-tlm export --format hf --load checkpoints --output my-model

`megatron-tlm COMMAND --help` lists the flags of a command; `megatron-tlm --version` prints {__version__}.
""".format(commands="\n".join(f"  {name:<11} {text}" for name, text in COMMANDS.items()))


class Command(Protocol):
    """A module of this room that carries out one command."""

    def main(self, arguments: Sequence[str]) -> int: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's own) and give its exit code: 0, or 2 for a mistake of the user's."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except TlmError as error:
        report(error)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of `megatron-tlm plan | head` has left; let the interpreter's own flush fail in silence.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if name == "--version":
        print(f"megatron-tlm {__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"{name} is not a command; {did_you_mean(name, COMMANDS)}")
    for number, word in enumerate(words, start=1):
        # Bytes that are none come as lone surrogates, which no file of ours and few consoles can hold.
        if not is_text(word):
            raise ConfigError(f"argument {number} = {word!a} is no UTF-8 text; write it in UTF-8, or rename the file")
    # Read once, when the command loads torch; what the user has set stays.
    for variable, value in OPENMP_DEFAULTS.items():
        os.environ.setdefault(variable, value)
    command = cast(Command, import_module(f"megatron_tlm.cli.{MODULES.get(name, name)}"))
    return command.main(words[1:])


if __name__ == "__main__":
    sys.exit(main())
