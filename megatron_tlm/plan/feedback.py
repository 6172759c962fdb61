"""A run's own measurements beside what was planned for it: the coefficients they give, and the cut they speak for.

Within a stage the planner's proportions hold; what a stage as a whole took more or less than planned scales all units
that it owned. By those coefficients the cut that was run is simulated again, which shows how well they explain the
measured step, and so is every other cut: a unit keeps its coefficient when it moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import Plan, cut_units, plan_of
from megatron_tlm.plan.cut import Objective
from megatron_tlm.plan.hardware import Profile, UnitSeconds
from megatron_tlm.plan.measured import PipelineSeconds, StageSeconds


def medians(records: Sequence[PipelineSeconds]) -> PipelineSeconds:
    """Of the last records that are of the same stages, figure by figure: a hiccup does not count."""
    last = records[-1]
    alike = [record for record in records if (record.units, record.micro_batches) == (last.units, last.micro_batches)]
    stages = zip(*(record.stages for record in alike), strict=True)
    return PipelineSeconds(
        steps=sum(record.steps for record in alike),
        micro_batches=last.micro_batches,
        seconds=median(record.seconds for record in alike),
        stages=tuple(
            StageSeconds(**{name: median(getattr(taken, name) for taken in same) for name in vars(same[0])})
            for same in stages
        ),
        units=last.units,
    )


@dataclass(frozen=True)
class Feedback:
    """`plan` is what the run's configuration gives, cut as the run was; `step_seconds` its measured step."""

    plan: Plan
    measured: PipelineSeconds
    step_seconds: float
    objective: Objective = "step-time"

    def planned_share(self, stage: int) -> float:
        """A stage's part of the planned compute."""
        times = [taken.forward + taken.backward for taken in self.plan.stage_times]
        return times[stage] / sum(times) if sum(times) else 1 / len(times)

    def measured_share(self, stage: int) -> float:
        """A stage's part of the measured compute."""
        times = [taken.compute for taken in self.measured.stages]
        return times[stage] / sum(times) if sum(times) else 1 / len(times)

    @cached_property
    def profile(self) -> Profile:
        """The measured coefficients: seconds of every unit by name, of a message, and of what follows the pipeline."""
        plan, measured = self.plan, self.measured
        return Profile(
            device="a run",
            seq_length=plan.workload.seq_length,
            micro_batch_size=plan.workload.micro_batch_size,
            tensor_degree=plan.grid.tensor,
            bf16=plan.setting.state.bf16,
            recompute=plan.workload.recompute,
            hidden_size=plan.shape.hidden_size,
            units=tuple(unit for stage in range(len(plan.stages)) for unit in self._unit_seconds(stage)),
            message_bandwidth=self._message_bandwidth,
            update_seconds=max(self.step_seconds - measured.seconds, 0.0) / self._largest_update,
            notes=f"fitted to {measured.steps} steps of a run, stage by stage",
        )

    @cached_property
    def fitted(self) -> Plan:
        """The cut that was run, by the measured coefficients."""
        setting = replace(self.plan.setting, profile=self.profile, hardware=None)
        return plan_of(setting, self.plan.units, (self.plan.stages, None))

    @cached_property
    def best(self) -> Plan:
        """The best cut by the measured coefficients."""
        setting = self.fitted.setting
        return plan_of(setting, self.plan.units, cut_units(setting, self.plan.units, self.objective))

    @property
    def saving(self) -> float:
        """The share of the simulated step that the best cut saves."""
        now = self.fitted.timeline.step_time
        return 1 - self.best.timeline.step_time / now if now else 0.0

    def _unit_seconds(self, stage: int) -> list[UnitSeconds]:
        indices, taken, count = self.plan.stages[stage], self.measured.stages[stage], self.measured.micro_batches
        pieces = [self.plan.pieces[index] for index in indices]
        # A micro-batch is taken in before its forward: whoever has the stage's work has to wait for that too.
        forward = _shared_out([piece.forward for piece in pieces], (taken.forward + taken.load) / count)
        backward = _shared_out([piece.backward for piece in pieces], taken.backward / count)
        units = [self.plan.units[index] for index in indices]
        return [
            UnitSeconds(unit.kind, unit.width, ahead, back, unit.name)
            for unit, ahead, back in zip(units, forward, backward, strict=True)
        ]

    @property
    def _message_bandwidth(self) -> float:
        stages, count = len(self.plan.stages), self.measured.micro_batches
        seconds = sum(taken.communication for taken in self.measured.stages)
        # An activation and a gradient over every border for each micro-batch, each seen from both ends.
        messages = 4 * (stages - 1) * count
        return self.plan.setting.message_bytes * messages / seconds if seconds else 0.0

    @property
    def _largest_update(self) -> float:
        """Parameters that the fullest rank updates: the step ends when that is done."""
        setting = self.plan.setting
        shares = setting.grid.data if setting.state.zero_stage else 1
        return max(sum(self.plan.pieces[index].parameters for index in own) for own in self.plan.stages) / shares


def _shared_out(ticks: Sequence[int], seconds: float) -> list[float]:
    """Seconds in proportion to the ticks; equal shares where those are all zero."""
    whole = sum(ticks)
    return [seconds * tick / whole if whole else seconds / len(ticks) for tick in ticks]


def compare(plan: Plan, measured: PipelineSeconds, step_seconds: float, objective: Objective = "step-time") -> Feedback:
    """The feedback of a run whose configuration gives `plan`. PlanError where it ran another model or layout."""
    if len(measured.units) != plan.grid.pipe:
        raise PlanError(
            f"pipeline_model_parallel_size = {plan.grid.pipe} is not the {len(measured.units)} stages that the run "
            "measured; give the run's own"
        )
    if sum(measured.units) != len(plan.units):
        raise PlanError(
            f"the run = {sum(measured.units)} units measured, the configuration has {len(plan.units)}; "
            "give the run's own model"
        )
    if measured.micro_batches != plan.micro_batches:
        raise PlanError(
            f"the run = {measured.micro_batches} micro-batches a step, the configuration has {plan.micro_batches}; "
            "give the run's own batch and world size"
        )
    return Feedback(plan.with_stages(measured.ranges), measured, step_seconds, objective)
