"""What is settled before any rank talks to another: plan, length, tokenizer, the checkpoint to go on from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from megatron_tlm.checkpoint.facts import Facts, Scalar
from megatron_tlm.checkpoint.folder import require_writable
from megatron_tlm.config.check import check_training, global_batch_size
from megatron_tlm.config.schema import Config
from megatron_tlm.data.loader import check_corpora
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.data.vocabulary import read_vocabulary
from megatron_tlm.errors import DataError
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.train.engines.deepspeed_config import check_deepspeed
from megatron_tlm.train.engines.packing import pack_rules
from megatron_tlm.train.engines.schedule import Schedule, build_schedule
from megatron_tlm.train.logs.wandb_board import require_wandb
from megatron_tlm.train.saving.changes import changes_since, layout_changes
from megatron_tlm.train.saving.former import check_save_folder
from megatron_tlm.train.saving.resume import find_resume, saved_facts


@dataclass(frozen=True)
class Prepared:
    """What is settled before any rank talks to another; `news` is for rank 0 to tell."""

    plan: Plan
    schedule: Schedule
    train_steps: int
    tokenizer: Tokenizer | None
    source: Path | None
    news: tuple[str, ...]
    facts: Facts | None = None  # of the source
    before: Mapping[str, Scalar] = field(default_factory=dict)  # what the checkpoint keeps of its data


def prepare(config: Config, world_size: int, damaged: Mapping[Path, str] = MappingProxyType({})) -> Prepared:
    """Everything that can be decided or refused without another rank; TlmError for the first fault.

    `damaged` are checkpoints that are not to be continued from, and why.
    """
    degree = check_training(config, world_size)
    check_deepspeed(config)
    require_wandb(config.logging)
    batch = global_batch_size(config, degree)
    train_steps = config.training.train_iters or (config.training.train_samples or 0) // batch
    tokenizer, vocab_size = read_vocabulary(config)
    plan = build_plan(config, vocab_size, data=degree)
    pack_rules(config.data, eod_id(tokenizer), plan.shape.mixer)
    check_corpora(config.data, plan.shape.vocab_size, valid=config.training.eval_iters > 0)
    news: list[str] = []
    source = find_resume(config.checkpoint, news, damaged)
    check_save_folder(config.checkpoint, source)
    if config.checkpoint.save is not None:
        require_writable(Path(config.checkpoint.save), "checkpoint.save")
    schedule = build_schedule(config.optimizer, train_steps)
    facts = None if source is None else saved_facts(source, plan)
    before: Mapping[str, Scalar] = {}
    if facts is not None and not config.checkpoint.finetune:
        before = facts.extra
        news += (*layout_changes(facts, plan), *changes_since(facts, config, schedule, batch))
    return Prepared(
        plan=plan,
        schedule=schedule,
        train_steps=train_steps,
        tokenizer=tokenizer,
        source=source,
        news=tuple(news),
        facts=facts,
        before=before,
    )


def eod_id(tokenizer: Tokenizer | None) -> int | None:
    """The id that ends a document, None where there is no tokenizer to ask, or it has none."""
    try:
        return None if tokenizer is None else tokenizer.eod_id
    except DataError:
        return None
