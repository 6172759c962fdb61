"""Ranks that succeed or fail together: nobody goes on to a collective that another rank will never reach."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from megatron_tlm.comm.groups import gather_object
from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.errors import TlmError

T = TypeVar("T")


class AgreedError(TlmError):
    """A fault that every rank raises at the same place: rank 0 speaks for all."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


def agree(action: Callable[[], T]) -> T:
    """This rank's result of `action` once all ranks have theirs; AgreedError on all ranks where it failed on any.

    Faults of the package and of the file system are shared; anything else is a bug and leaves at once.
    """
    fault: Exception | None = None
    try:
        result = action()
    except (TlmError, OSError) as error:
        fault = error
    if found := _together(gather_object(None if fault is None else (sentence(fault), _passes(fault)))):
        raise AgreedError(found[0], passing=found[1]) from fault
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
    told = None if fault is None else (_any_sentence(fault), _passes(fault))
    found = meeting.decide(topic, told, _together)
    if found is None:
        return result
    meeting.dismiss(topic)
    if fault is not None and not isinstance(fault, TlmError | OSError):
        raise fault
    raise AgreedError(found[0], passing=found[1]) from fault


def _together(told: Sequence[tuple[str, bool] | None]) -> tuple[str, bool] | None:
    """One sentence for the faults of all ranks, and whether they may pass; None where there are none."""
    faults = {rank: fault for rank, fault in enumerate(told) if fault is not None}
    if not faults:
        return None
    first, (text, _) = next(iter(faults.items()))
    others = "" if len(faults) == 1 else f" (and {len(faults) - 1} more ranks)"
    where = "" if len(told) == 1 or len(faults) == len(told) else f"rank {first}{others}: "
    return where + text, any(passing for _, passing in faults.values())


def _passes(fault: Exception) -> bool:
    """Whether another start may do without it: a file system that did not answer, a bug that shows now and then."""
    return fault.passing if isinstance(fault, TlmError) else True


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
