"""The samples that a run trained on at one step, as passages to evaluate."""

from megatron_tlm.config.schema import Config
from megatron_tlm.data.loader import build_datasets
from megatron_tlm.evaluation.passages import Passage
from tests.equivalence.training import GLOBAL_BATCH, VOCAB


def training_passages(config: Config, step: int) -> list[Passage]:
    """Of a run of `train(config)` of `train_iters` steps; steps count from 1."""
    steps = config.training.train_iters or 0
    data = build_datasets(
        config.data,
        num_samples=(steps * GLOBAL_BATCH, 0, 0),
        seq_length=config.model.seq_length,
        seed=config.training.seed,
        vocab_size=VOCAB,
    )
    assert data.train is not None
    samples = range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH)
    return [Passage(data.train[sample], config.model.seq_length) for sample in samples]
