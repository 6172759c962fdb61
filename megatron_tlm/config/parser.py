"""argparse, made to fail in one sentence, to know both spellings of a flag and never to guess one."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from megatron_tlm.config.nearest import did_you_mean, nearest
from megatron_tlm.errors import ConfigError

_FLAG = re.compile(r"--[A-Za-z][\w-]*(?==|$)")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose mistakes are ConfigErrors that name the nearest flag.

    `--lr_decay_style` is read as `--lr-decay-style`; abbreviations are unknown, so that a new flag breaks no script.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The namespace of a whole command line. ConfigError: an unknown flag, a stray word, a missing value."""
        namespace, rest = self.parse_known_args([_with_hyphens(argument) for argument in arguments])
        if rest:
            flags = [word.split("=")[0] for word in rest if _FLAG.match(word)]
            raise ConfigError(self._unknown(flags[0]) if flags else f"{rest[0]} {self._stray(rest[0])}")
        return namespace

    def error(self, message: str) -> NoReturn:
        match = re.match(r"argument ([^:]+): (.*)", message)
        text = f"{match[1]}: {match[2]}" if match else message
        raise ConfigError(f"{text}; see `{self.prog} --help`")

    def visible_flags(self) -> tuple[str, ...]:
        """The flags that `--help` shows."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return tuple(name for action in shown for name in action.option_strings if name.startswith("--"))

    def _unknown(self, flag: str) -> str:
        every = [name for action in self._actions for name in action.option_strings]
        if match := nearest(flag, self.visible_flags(), cutoff=0.7) or nearest(flag, every):
            return f"{flag} is not a flag of `{self.prog}`; {did_you_mean(flag, [match])}"
        return f"{flag} is not a flag of `{self.prog}`; see `{self.prog} --help`"

    def _stray(self, word: str) -> str:
        if word.endswith((".yaml", ".yml")) and "--config" in self._option_string_actions:
            return f"stands without a flag; write --config {word}"
        return f"stands without a flag; see `{self.prog} --help`"


def program(command: str) -> str:
    """How the user called this: `megatron-tlm train`, whatever path the interpreter saw."""
    return f"megatron-tlm {command}"


def default_arguments(arguments: Sequence[str] | None) -> Sequence[str]:
    return sys.argv[1:] if arguments is None else arguments


def _with_hyphens(argument: str) -> str:
    match = _FLAG.match(argument)
    return match[0].replace("_", "-") + argument[match.end() :] if match else argument
