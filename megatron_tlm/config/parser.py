"""argparse, made to fail in one sentence, to know both spellings of a flag and never to guess one."""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from megatron_tlm.config.hints import NO_FLAG, other_name
from megatron_tlm.config.nearest import nearest
from megatron_tlm.config.values import from_flag
from megatron_tlm.errors import ConfigError

# How like a flag's name another word has to be: one that --help shows, and one that it keeps to itself.
_CLOSE, _VERY_CLOSE = 0.75, 0.85
_FLAG = re.compile(r"--[A-Za-z][\w-]*(?==|$)")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose mistakes are ConfigErrors that name the nearest flag.

    `--lr_decay_style` is read as `--lr-decay-style`; abbreviations are unknown, so that a new flag breaks no script.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        # What else may be wrong with the flags of a command line, each complaint a sentence.
        self.checks: list[Callable[[argparse.Namespace], Sequence[str]]] = []
        self._told: list[str] = []

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The namespace of a whole command line. ConfigError: a missing value, a stray word, and, all at once, every
        flag that is unknown or not offered."""
        words = [_with_hyphens(argument) for argument in arguments]
        flags = dict.fromkeys(word.split("=")[0] for word in words if _FLAG.match(word))
        self._told = [self._unknown(flag) for flag in flags if flag not in self._option_string_actions]
        namespace, rest = self.parse_known_args(words)
        complaints = self._told
        # Words behind an unknown flag are likely its values.
        complaints += [f"{rest[0]} {self._stray(rest[0])}"] if rest and not complaints else []
        complaints += [text for check in self.checks for text in check(namespace)]
        if complaints:
            raise ConfigError(self._together(complaints))
        return namespace

    def error(self, message: str) -> NoReturn:
        match = re.match(r"argument ([^:]+): (.*)", message)
        if match and match[2].startswith("= "):  # of a `type` that knows the way out
            text = f"{match[1]} {match[2]}"
        else:
            text = f"{match[1]}: {match[2]}" if match else message
            text += f"; see `{self.prog} --help`"
        raise ConfigError(self._together([*self._told, text]))

    def visible_flags(self) -> tuple[str, ...]:
        """The flags that `--help` shows."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return tuple(name for action in shown for name in action.option_strings if name.startswith("--"))

    def _unknown(self, flag: str) -> str:
        return f"{flag} is not a flag of `{self.prog}`; {self._way_out(flag)}"

    def _together(self, complaints: Sequence[str]) -> str:
        """One complaint as it is, several numbered and shortened: an error is one line."""
        if len(complaints) == 1:
            return complaints[0]
        short = (text.replace(f" is not a flag of `{self.prog}`;", ":", 1) for text in complaints)
        told = " ".join(f"({number}) {text}" for number, text in enumerate(short, start=1))
        return f"{len(complaints)} mistakes in the flags of `{self.prog}`: {told}"

    def _way_out(self, flag: str) -> str:
        if ours := other_name(flag, self._option_string_actions):
            return f"give {ours}"
        if flag in NO_FLAG:
            return NO_FLAG[flag]
        visible = [name.removeprefix("--") for name in self.visible_flags()]
        every = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
        name = flag.removeprefix("--")
        match = nearest(name, visible, cutoff=_CLOSE) or nearest(name, every, cutoff=_VERY_CLOSE)
        return f"did you mean --{match}?" if match else f"see `{self.prog} --help`"

    def _stray(self, word: str) -> str:
        if word.endswith((".yaml", ".yml")) and "--config" in self._option_string_actions:
            return f"stands without a flag; write --config {word}"
        return f"stands without a flag; see `{self.prog} --help`"


def integer(least: int = 1) -> Callable[[str], int]:
    """The `type` of a flag that takes an integer of at least `least`."""

    def read(text: str) -> int:
        value: int = _read(text, int)
        if value < least:
            raise argparse.ArgumentTypeError(f"= {value} is below {least}; give {least} or more")
        return value

    return read


def real(least: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """The `type` of a flag that takes a finite number from `least` to `most`."""

    def read(text: str) -> float:
        value: float = _read(text, float)
        if value < least and most == math.inf:
            raise argparse.ArgumentTypeError(f"= {value:g} is below {least:g}; give {least:g} or more")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"= {value:g} lies outside {least:g}..{most:g}; give one inside")
        return value

    return read


def _read(text: str, kind: type) -> Any:
    try:
        return from_flag(text, kind, "")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).lstrip()) from error


def program(command: str) -> str:
    """How the user called this: `megatron-tlm train`, whatever path the interpreter saw."""
    return f"megatron-tlm {command}"


def _with_hyphens(argument: str) -> str:
    match = _FLAG.match(argument)
    return match[0].replace("_", "-") + argument[match.end() :] if match else argument
