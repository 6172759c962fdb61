"""All that a training loop needs, as one value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from megatron_tlm.checkpoint.facts import Scalar
from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.config.schema import Config
from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.engines.schedule import Schedule
from megatron_tlm.train.logs.log import RunLog
from megatron_tlm.train.logs.watch import Watcher
from megatron_tlm.train.saving.resume import Progress
from megatron_tlm.train.saving.saver import Saver
from megatron_tlm.train.survival.bad_steps import StepJudge
from megatron_tlm.train.survival.whereabouts import Whereabouts

# Fills the engine with the checkpoint of a step; collective. What it kept of its data and its steps comes with it.
GoBack = Callable[[int], tuple[Progress, Mapping[str, Scalar]]]


@dataclass(frozen=True)
class Run:
    """All that a loop needs; `saver` writes checkpoints, None where nothing is to be saved.

    `began` is the start of the run on the monotonic clock, None for that of the loop.
    """

    config: Config
    plan: Plan
    mesh: Mesh
    engine: Engine
    schedule: Schedule
    train_steps: int
    train: SampleDataset
    valid: SampleDataset | None
    log: RunLog
    saver: Saver | None
    named: Mapping[str, SampleDataset] = field(default_factory=dict)  # validation sets beside `valid`
    data_facts: Callable[[int], Mapping[str, Scalar]] = lambda consumed_samples: {}
    watchers: Sequence[Watcher] = ()
    judge: StepJudge = field(default_factory=lambda: StepJudge(ResilienceConfig()))
    go_back: GoBack | None = None
    place: Whereabouts = field(default_factory=Whereabouts)
    began: float | None = None

    @property
    def samples_per_step(self) -> int:
        return self.plan.micro_batches * self.config.training.micro_batch_size * self.plan.grid.data

    @property
    def tokens_per_step(self) -> int:
        return self.samples_per_step * self.plan.seq_length
