"""A tiny model trained twice: by one process with plain torch, and by an engine on forked ranks.

Everything is compared by global name, so a layout cannot hide a shard in the wrong place.
"""

import contextlib
import gc
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_tlm.comm.groups import build_mesh, gather_object
from megatron_tlm.config.schema import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    TaperConfig,
    TrainingConfig,
)
from megatron_tlm.data.loader import micro_batches
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from megatron_tlm.model.init import init_stage
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.train.engines.build import build_engine
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.engines.optimizer import parameter_groups, run_periods
from megatron_tlm.train.engines.packing import pack_rules
from megatron_tlm.train.engines.quiet import prepare_deepspeed
from tests.cms_oracle import History, Rule

VOCAB = 61
EOD = 7
GLOBAL_BATCH = 4
STEPS = 5
LEARNING_RATES = (1e-2, 8e-3, 6e-3, 4e-3, 2e-3)

# Imported here, before ranks are forked: a first engine costs each process five seconds of imports otherwise.
_launcher = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
prepare_deepspeed(torch.device("cpu"))
# It names this process rank 0 of 1, which the commands that other tests start would inherit; ranks name themselves.
for _name, _value in _launcher.items():
    if _value is None:
        os.environ.pop(_name, None)
for late in (
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3",
    "megatron_tlm.train.engines.pipeline",
    "megatron_tlm.train.engines.zero",
    "torch._dynamo",
):
    import_module(late)
# DeepSpeed collects garbage while it starts; in a forked rank that would copy and walk every page of the parent.
gc.collect()
gc.freeze()

from megatron_tlm.train.saving.state import state_pieces  # noqa: E402


@dataclass(frozen=True)
class Trained:
    """What a run of five steps left: losses, gradient norms, and every stored tensor whole, by (name, role)."""

    losses: list[float]
    norms: list[float]
    tensors: dict[tuple[str, str], Tensor]
    valid_loss: float


def show(case: Any) -> str:
    """A test case's name: `4ranks`, `tensor=2-pipeline=2`."""
    if isinstance(case, int):
        return f"{case}ranks"
    return "-".join(f"{key.split('_')[0]}={value}" for key, value in case.items()) or "default"


def tiny(**changes: Any) -> Config:
    """Three tapered layers; `changes` are fields of any section. Clipping bites at every step."""
    config = Config(
        ModelConfig(
            num_layers=3,
            hidden_size=32,
            num_attention_heads=4,
            num_query_groups=2,
            ffn_hidden_size=64,
            seq_length=16,
            make_vocab_size_divisible_by=8,
        ),
        taper=TaperConfig(width_multiple=8),
        training=TrainingConfig(global_batch_size=GLOBAL_BATCH, train_iters=STEPS),
        # An epsilon beside the gradients' own size keeps Adam from hiding a wrong scale, a wrong clip above all.
        optimizer=OptimizerConfig(clip_grad=0.25, lr_decay_style="constant", weight_decay=0.1, adam_eps=1e-3),
        parallel=ParallelConfig(),
    )
    for section in ("model", "architecture", "taper", "training", "optimizer", "parallel", "data", "resilience"):
        part = getattr(config, section)
        own = {name: value for name, value in changes.items() if hasattr(part, name)}
        config = replace(config, **{section: replace(part, **own)})
    return config


def batches(config: Config, start_step: int = 0, data_rank: int = 0, data_size: int = 1) -> Iterator[NDArray[np.int64]]:
    dataset = MockDataset(1000, config.model.seq_length, VOCAB, seed=3)
    return micro_batches(
        dataset,
        start_sample=start_step * GLOBAL_BATCH,
        micro_batch_size=config.training.micro_batch_size,
        global_batch_size=GLOBAL_BATCH,
        data_rank=data_rank,
        data_size=data_size,
    )


def plain_run(config: Config, steps: int = STEPS, dtype: torch.dtype = torch.float32) -> Trained:
    """One process, no engine: torch's AdamW and clip_grad_norm_ on the whole global batch at once."""
    alone = replace(config, parallel=ParallelConfig(), training=replace(config.training, micro_batch_size=GLOBAL_BATCH))
    plan = build_plan(alone, VOCAB)
    stage = Stage(plan, dtype=dtype)
    init_stage(stage, plan, seed=config.training.seed)
    parameters = stage.global_parameters()
    betas = (config.optimizer.adam_beta1, config.optimizer.adam_beta2)
    slow = slow_histories(config, plan, parameters)
    specs = {name: spec for name, spec in plan.parameter_specs.items() if name not in slow}
    fast = {name: parameter for name, parameter in parameters.items() if name not in slow}
    groups = parameter_groups(fast, specs, config.optimizer.weight_decay)
    optimizer = torch.optim.AdamW(groups, betas=betas, eps=config.optimizer.adam_eps, foreach=False)
    losses, norms, data = [], [], batches(alone)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATES[step]
        loss = _plain_loss(stage, next(data), config.data)
        stage.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(float(torch.nn.utils.clip_grad_norm_(stage.parameters(), config.optimizer.clip_grad or torch.inf)))
        optimizer.step()
        for name, history in slow.items():
            gradient = parameters[name].grad
            assert gradient is not None
            history.step(gradient, LEARNING_RATES[step])
            parameters[name].data.copy_(history.value)
        losses.append(loss.item())
    tensors = {}
    for name, parameter in parameters.items():
        rows = plan.parameter_specs[name].shape[0]
        tensors[name, "weight"] = parameter.detach()[:rows].clone()
        if name in slow:
            moments = dict(zip(("exp_avg", "exp_avg_sq"), slow[name].moments(), strict=True))
            tensors |= {(name, role): moment for role, moment in moments.items()}
            tensors[name, "window_sum"] = slow[name].window()
            continue
        for role in ("exp_avg", "exp_avg_sq"):
            tensors[name, role] = optimizer.state[parameter][role][:rows].clone()
    with torch.no_grad():
        valid = _plain_loss(stage, next(data), config.data).item()
    return Trained(losses, norms, tensors, valid)


def slow_histories(config: Config, plan: Plan, parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, History]:
    """The oracle of every parameter that is not updated at every step, by name."""
    periods, optimizer = (1, *run_periods(config, plan)), config.optimizer
    histories = {}
    for name, parameter in parameters.items():
        spec = plan.parameter_specs[name]
        rule = Rule(
            period=periods[spec.level],
            decay=optimizer.weight_decay if spec.decay else 0.0,
            betas=(optimizer.adam_beta1, optimizer.adam_beta2),
            epsilon=optimizer.adam_eps,
        )
        if rule.period > 1:
            histories[name] = History(parameter.detach().clone(), rule, config.architecture.cms_update)
    return histories


def _plain_loss(stage: Stage, batch: NDArray[np.int64], data: DataConfig) -> Tensor:
    tokens = torch.from_numpy(batch)
    rules = pack_rules(data, EOD, stage.plan.shape.mixer)
    inputs = tokens[:, :-1]
    losses = vocab_parallel_cross_entropy(
        stage(inputs, packing=rules.packing(batch, inputs.device)), tokens[:, 1:], stage.tensor, VOCAB
    )
    return losses[inputs != EOD].mean() if data.eod_mask_loss else losses.mean()


@contextlib.contextmanager
def engine_on(config: Config, world_size: int) -> Iterator[tuple[Engine, Plan, Any]]:
    """This rank's engine for a world of `world_size`."""
    parallel = config.parallel
    data = world_size // (parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size)
    plan = build_plan(config, VOCAB, data=data)
    mesh = build_mesh(plan.grid)
    yield build_engine(config, plan, mesh, EOD), plan, mesh


def engine_run(rank: int, config: Config, world_size: int, steps: int = STEPS) -> Trained:
    """A run under the engine; the tensors are put together from what each rank would save."""
    with engine_on(config, world_size) as (engine, plan, mesh):
        data = batches(config, data_rank=mesh.data.rank, data_size=mesh.data.size)
        results = [engine.train_step(data, LEARNING_RATES[step]) for step in range(steps)]
        following = batches(config, steps, mesh.data.rank, mesh.data.size)
        valid = engine.evaluate(following, plan.micro_batches)
        tensors = gather_tensors(engine, plan, mesh, config.parallel.zero_stage)
    return Trained([item.loss for item in results], [item.grad_norm for item in results], tensors, valid)


def gather_tensors(engine: Engine, plan: Plan, mesh: Any, zero_stage: int) -> dict[tuple[str, str], Tensor]:
    """Every stored tensor whole; an element that no rank stores stays NaN and fails any comparison."""
    pieces = state_pieces(engine, plan, mesh, zero_stage, optimizer=True)
    mine = [(p.name, p.role, p.global_shape, p.offset, p.load().float().numpy().copy()) for p in pieces]
    tensors: dict[tuple[str, str], Tensor] = {}
    for name, role, shape, offset, values in (piece for rank in gather_object(mine) for piece in rank):
        whole = tensors.setdefault((name, role), torch.full(shape, torch.nan))
        box = tuple(slice(a, a + n) for a, n in zip(offset, values.shape, strict=True))
        assert whole[box].isnan().all(), f"{role} of {name} is stored twice"
        whole[box] = torch.from_numpy(values)
    return tensors
