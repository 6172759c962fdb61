"""Ranks that succeed or fail together: nobody goes on to a collective that another rank will never reach."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from megatron_tlm.comm.groups import gather_object
from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.errors import TlmError

T = TypeVar("T")


class AgreedError(TlmError):
    """A fault that every rank raises at the same place: rank 0 speaks for all."""


def agree(action: Callable[[], T]) -> T:
    """This rank's result of `action` once all ranks have theirs; AgreedError on all ranks where it failed on any.

    Faults of the package and of the file system are shared; anything else is a bug and leaves at once.
    """
    fault: Exception | None = None
    try:
        result = action()
    except (TlmError, OSError) as error:
        fault = error
    if text := _together(gather_object(None if fault is None else sentence(fault))):
        raise AgreedError(text) from fault
    return result


def agree_before(meeting: Meeting, topic: str, action: Callable[[], T]) -> T:
    """`agree` for ranks that only meet yet: what takes long holds up no collective, and any failure reaches all."""
    fault: Exception | None = None
    try:
        with meeting.at_work():
            result = action()
    except Exception as error:
        fault = error
        meeting.fail()
    text = meeting.decide(topic, None if fault is None else _any_sentence(fault), _together)
    if text is None:
        return result
    meeting.dismiss(topic)
    if fault is not None and not isinstance(fault, TlmError | OSError):
        raise fault
    raise AgreedError(text) from fault


def _together(told: Sequence[str | None]) -> str | None:
    """One sentence for the faults of all ranks, None where there are none."""
    faults = {rank: text for rank, text in enumerate(told) if text is not None}
    if not faults:
        return None
    first, text = next(iter(faults.items()))
    others = "" if len(faults) == 1 else f" (and {len(faults) - 1} more ranks)"
    where = "" if len(told) == 1 or len(faults) == len(told) else f"rank {first}{others}: "
    return where + text


def _any_sentence(fault: Exception) -> str:
    return sentence(fault) if isinstance(fault, TlmError | OSError) else f"{type(fault).__name__}: {fault}"


def sentence(fault: Exception) -> str:
    """The one sentence of a fault of the package or of the file system."""
    if isinstance(fault, TlmError):
        return str(fault)
    name = getattr(fault, "filename", None)
    if name is None:
        return (
            f"a file = {fault}, which one the system does not say; look at the disks of --save, --log-dir, "
            "--data-cache-path and the data, and start again"
        )
    return f"{name} = {fault}; free or mend it and start again"
