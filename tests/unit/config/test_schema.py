"""Each section refuses, on its own, what its own fields cannot mean."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import pytest

from megatron_tlm.config.document import read_preset
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import ConfigError

TINY = build([read_preset("tiny")])


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        TINY.model.num_layers = 5  # type: ignore[misc]


def test_defaults_are_derived_from_their_neighbours() -> None:
    model = replace(TINY.model, ffn_hidden_size=None)
    assert model.baseline_width == 320  # 4 x 128 x 2/3 = 341, cut to a multiple of 64
    assert (model.query_groups, model.head_width, model.positions) == (4, 32, 256)
    assert replace(model, num_query_groups=2, kv_channels=16, max_position_embeddings=512).query_groups == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c.model, num_layers=0), r"model.num_layers = 0 is below 1; give 1 or more"),
        (lambda c: replace(c.model, num_layers=20_000), r"model.num_layers = 20000 is above 10000; give 10000 or less"),
        (lambda c: replace(c.model, num_layers=10**23), r"model.num_layers = 1000000000+ is above 10000"),
        (lambda c: replace(c.model, vocab_size=10**17), r"model.vocab_size = 1000000000+ is above 2147483647"),
        (lambda c: replace(c.model, ffn_hidden_size=10**15), r"model.ffn_hidden_size = 10+ is above 16777216"),
        (lambda c: replace(c.training, global_batch_size=10**12), r"global_batch_size = 10+ is above 1073741824"),
        (lambda c: replace(c.training, train_samples=10**20), r"training.train_samples = 10+ is above 281474976710656"),
        (
            lambda c: replace(c.model, init_method_std=1e30),
            r"model.init_method_std = 1e\+30 is above 1; give 1 or less",
        ),
        (lambda c: replace(c.model, init_method_std=0.0), r"model.init_method_std = 0.0 is not above 0"),
        (lambda c: replace(c.model, hidden_dropout=1.0), r"model.hidden_dropout = 1.0 lies outside \[0, 1\)"),
        (lambda c: replace(c.model, num_attention_heads=3), r"hidden_size = 128 is not a multiple of .* = 3"),
        (lambda c: replace(c.model, kv_channels=5), r"kv_channels = 5 is odd, rotary positions turn pairs"),
        (
            lambda c: replace(c.model, num_query_groups=3),
            r"num_query_groups = 3 does not divide .* = 4; give a d",
        ),
        (
            lambda c: replace(c.model, max_position_embeddings=8),
            r"seq_length = 256 exceeds max_position_emb.* = 8",
        ),
        (lambda c: replace(c.model, rotary_base=0.0), r"model.rotary_base = 0.0 is not above 0; give a positive"),
        (lambda c: replace(c.model, rotary_base=-1.0), r"model.rotary_base = -1.0 is not above 0"),
        (lambda c: replace(c.model, norm_epsilon=0.0), r"model.norm_epsilon = 0.0 is not above 0"),
        (lambda c: replace(c.training, seed=2**32), r"training.seed = 4294967296 is above 4294967295, numpy's last"),
        (lambda c: replace(c.training, seed=-1), r"training.seed = -1 is below 0"),
        (lambda c: replace(c.parallel, distributed_timeout_minutes=1e308), r"_minutes = 1e\+308 is above 43200, 30 d"),
        (lambda c: replace(c.taper, taper_end=0.0), r"taper.taper_end = 0.0 is not positive"),
        (lambda c: replace(c.taper, width_multiple=0), r"taper.width_multiple = 0 is below 1"),
        (lambda c: replace(c.parallel, zero_stage=4), r"parallel.zero_stage = 4 is above 3; DeepSpeed has stages 0, 1"),
        (lambda c: replace(c.parallel, tensor_model_parallel_size=0), r"tensor_model_parallel_size = 0 is below 1"),
        (lambda c: replace(c.parallel, distributed_timeout_minutes=0), r"timeout_minutes = 0 is not positive"),
        (lambda c: replace(c.training, train_samples=80), r"train_iters = 200 and train_samples = 80 both set"),
        (lambda c: replace(c.training, micro_batch_size=0), r"training.micro_batch_size = 0 is below 1"),
        (lambda c: replace(c.optimizer, min_lr=1.0), r"optimizer.min_lr = 1 exceeds lr = 0.003; lower it"),
        (lambda c: replace(c.optimizer, adam_beta2=1.0), r"optimizer.adam_beta2 = 1.0 lies outside"),
        (lambda c: replace(c.optimizer, lr_warmup_iters=20), r"lr_warmup_fraction = 0.1 and lr_warmup_iters = 20"),
        (
            lambda c: replace(c.optimizer, lr_warmup_fraction=1.5),
            r"lr_warmup_fraction = 1.5 lies outside \[0, 1\]",
        ),
        (lambda c: replace(c.checkpoint, keep_last=0), r"checkpoint.keep_last = 0 is below 1"),
        (
            lambda c: replace(c.checkpoint, keep_every=5),
            r"keep_every = 5 has no effect where keep_last = none keeps all",
        ),
        (lambda c: replace(c.logging, log_interval=0), r"logging.log_interval = 0 is below 1"),
    ],
)
def test_a_section_refuses_what_it_cannot_mean(change: Callable[[Config], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change(TINY)
