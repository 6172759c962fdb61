"""The instructions that DeepSpeed's pipeline engine runs, as formulas: one forward, one backward, in lockstep.

    step      0    1    2    3    4    5    6    7    8    9
    stage 0   F0   .    F1   .    F2   B0   .    B1   .    B2          3 stages, 3 micro-batches
    stage 1   .    F0   .    F1   B0   F2   B1   .    B2   .
    stage 2   .    .    F0   B0   F1   B1   F2   B2   .    .

In step t stage s works on forward (t - s) / 2 where that is whole, else on backward (t + s + 1) / 2 - S; a number
outside 0..m-1 is an idle step. What a step computed is sent one step later, in an exchange with the neighbour that
needs it: the earlier stage takes a gradient and then gives an activation, the later one the reverse.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from megatron_tlm.errors import PlanError

Kind = Literal[
    "send_gradient",
    "receive_activation",
    "receive_gradient",
    "send_activation",
    "load",
    "forward",
    "backward",
    "reduce_tied",
    "reduce",
    "update",
]


@dataclass(frozen=True)
class Instruction:
    """One thing a stage does; `micro_batch` is None for what it does once per step."""

    kind: Kind
    micro_batch: int | None = None


def num_steps(num_stages: int, micro_batches: int) -> int:
    """Schedule steps of one optimizer step: 2 (m + S - 1)."""
    return 2 * (micro_batches + num_stages - 1)


def micro_batch_of(step: int, stage: int, num_stages: int) -> tuple[int, bool]:
    """(micro-batch, whether forward) of a stage in a schedule step; idle where no such micro-batch exists."""
    if (step - stage) % 2 == 0:
        return (step - stage) // 2, True
    return (step + stage + 1) // 2 - num_stages, False


def in_flight(stage: int, num_stages: int, micro_batches: int) -> int:
    """Micro-batches whose activations a stage holds at the most: min(S - s, m)."""
    return min(num_stages - stage, micro_batches)


def stage_steps(stage: int, num_stages: int, micro_batches: int) -> Iterator[tuple[Instruction, ...]]:
    """A stage's instructions, one tuple per schedule step. PlanError where there is nothing to schedule."""
    if not 0 <= stage < num_stages or micro_batches < 1:
        raise PlanError(
            f"stage = {stage} of {num_stages} with micro_batches = {micro_batches} has no schedule; "
            f"give a stage of 0..{num_stages - 1} and 1 micro-batch or more"
        )
    last_step = num_steps(num_stages, micro_batches) - 1
    before = -1
    for step in range(last_step + 1):
        now, is_forward = micro_batch_of(step, stage, num_stages)
        valid = range(micro_batches)
        done: list[Instruction] = []
        if is_forward and stage > 0:
            done += [Instruction("send_gradient", before)] if before in valid else []
            done += [Instruction("receive_activation", now)] if now in valid else []
        elif not is_forward and stage < num_stages - 1:
            done += [Instruction("receive_gradient", now)] if now in valid else []
            done += [Instruction("send_activation", before)] if before in valid else []
        if now in valid:
            if is_forward and stage in (0, num_stages - 1):
                done.append(Instruction("load", now))
            done.append(Instruction("forward" if is_forward else "backward", now))
        if step == last_step:
            done += [Instruction("reduce_tied"), Instruction("reduce"), Instruction("update")]
        before = now
        yield tuple(done)
