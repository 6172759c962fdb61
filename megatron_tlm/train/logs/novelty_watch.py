"""Layer-wise novelty while a model trains: every so many steps, on the same micro-batch of each data rank."""

from collections.abc import Callable, Mapping

from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.schema import Config
from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.data.loader import micro_batches
from megatron_tlm.model.novelty import NoveltyProbe, pearson
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.logs.watch import Moment


class NoveltyWatch:
    """A watcher that runs an evaluation of one micro-batch; its seconds are no step's."""

    def __init__(
        self, config: Config, plan: Plan, mesh: Mesh, engine: Engine, samples: SampleDataset, say: Callable[[str], None]
    ) -> None:
        self._config, self._plan, self._mesh = config, plan, mesh
        self._engine, self._samples, self._say = engine, samples, say

    def after_step(self, moment: Moment) -> Mapping[str, float]:
        """rho_block and rho_mlp of every layer, and Pearson's r of each with depth."""
        interval = self._config.logging.novelty_interval
        if interval is None or moment.step % interval:
            return {}
        batch = self._config.training.micro_batch_size
        stream = micro_batches(
            self._samples,
            start_sample=0,
            micro_batch_size=batch,
            global_batch_size=batch * self._mesh.data.size,
            data_rank=self._mesh.data.rank,
            data_size=self._mesh.data.size,
        )
        with NoveltyProbe(self._engine.stage, self._mesh) as probe:
            self._engine.evaluate(stream, 1)
        layers = probe.result()
        found = {f"rho_block/layer {index}": layer.rho_block for index, layer in enumerate(layers)}
        found |= {f"rho_mlp/layer {index}": layer.rho_mlp for index, layer in enumerate(layers)}
        told = []
        for name in ("rho_block", "rho_mlp"):
            r = pearson([getattr(layer, name) for layer in layers])
            if r is not None:
                found[f"{name}/r with depth"] = r
                told.append(f"{name} {r:.2f}")
        if told:
            self._say(f"novelty at step {moment.step} | r with depth: {', '.join(told)}")
        return found

    def close(self) -> None:
        return
