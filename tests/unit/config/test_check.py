"""Rules between sections, each told in one sentence with both numbers and a way out."""

from collections.abc import Mapping
from typing import Any

import pytest

from megatron_tlm.config.check import check, check_training, data_degree, global_batch_size
from megatron_tlm.config.document import read_preset
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config
from megatron_tlm.config.values import Setting
from megatron_tlm.errors import ConfigError


def tiny(**values: Any) -> Config:
    """The tiny preset with `section__field` values."""
    layer = {tuple(key.split("__")): Setting(value, key) for key, value in values.items()}
    return build([read_preset("tiny"), layer])  # type: ignore[list-item]


def test_the_data_degree_is_what_remains() -> None:
    config = tiny(parallel__tensor_model_parallel_size=2, parallel__pipeline_model_parallel_size=2)
    assert [data_degree(config, ranks) for ranks in (4, 8, 64)] == [1, 2, 16]
    assert check(config, 8) == 2


def test_the_global_batch_is_one_micro_batch_per_data_rank_by_default() -> None:
    assert global_batch_size(tiny(training__global_batch_size=None), 3) == 12
    assert global_batch_size(tiny(), 2) == 16


def test_a_sound_run_passes() -> None:
    assert check_training(tiny(data__mock_data=True), 2) == 2
    # Megatron's scripts pass it at any degree.
    assert check(tiny(parallel__sequence_parallel=True), 1) == 1
    assert check_training(tiny(data__data_path=("a",), checkpoint__save="s", checkpoint__save_interval=5), 1) == 1
    assert check_training(tiny(data__train_data_path=("a",), checkpoint__load="s", checkpoint__ckpt_step=0), 1) == 1


@pytest.mark.parametrize(
    ("ranks", "values", "message"),
    [
        (
            6,
            {"parallel__tensor_model_parallel_size": 2, "parallel__pipeline_model_parallel_size": 2},
            r"world size = 6 is not a multiple of tensor x pipeline = 2 x 2 = 4; start 4 or 8 ranks, or change",
        ),
        (
            1,
            {"parallel__tensor_model_parallel_size": 2},
            r"world size = 1 is not a multiple of tensor x pipeline = 2 x 1 = 2; start 2 ranks under torchrun \(--n",
        ),
        (
            3,
            {},
            r"global_batch_size = 16 is not a multiple of micro_batch_size x data degree = 4 x 3 = 12; give 12 or 24",
        ),
        (8, {}, r"global_batch_size = 16 is not a multiple of .* = 4 x 8 = 32; give 32, or another --micro-batch-size"),
        *(
            (
                2,
                {"parallel__pipeline_model_parallel_size": 2, "parallel__zero_stage": stage},
                rf"zero_stage = {stage} cannot be combined with pipeline_model_parallel_size = 2: .* has ZeRO stages 0 "
                "and 1; give --zero-stage 1",
            )
            for stage in (2, 3)
        ),
        (
            2,
            {
                "parallel__sequence_parallel": True,
                "parallel__tensor_model_parallel_size": 2,
                "model__seq_length": 257,
            },
            r"seq_length = 257 is not a multiple of tensor_model_parallel_size = 2, .*; give 256 or 258",
        ),
    ],
)
def test_a_layout_that_cannot_run_is_told(ranks: int, values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(tiny(**values), ranks)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"training__train_iters": None}, r"train_iters is not given and a run needs a length; give --train-iters"),
        (
            {"training__train_iters": None, "training__train_samples": 15},
            r"train_samples = 15 is below one step of global_batch_size = 16",
        ),
        ({"data__mock_data": False}, r"data.data_path is not given; give --data-path PREFIX .*, or --mock-data"),
        ({"data__data_path": ("a",)}, r"mock_data = true makes its tokens up and data_path names a corpus; drop one"),
        (
            {"data__mock_data": False, "data__data_path": ("a",), "data__valid_data_path": ("b",)},
            r"data_path = a is split by `split` and valid_data_path = b is not; give either",
        ),
        (
            {"data__mock_data": False, "data__valid_data_path": ("b",)},
            r"data.data_path is not given",
        ),
        (
            {"model__vocab_size": None},
            r"vocab_size is not given and no tokenizer is there to ask; give --token",
        ),
        ({"checkpoint__save_interval": 5}, r"save_interval = 5 and nothing is saved; give --save DIR or drop it"),
        ({"checkpoint__keep_last": 5}, r"keep_last = 5 and nothing is saved"),
        ({"checkpoint__ckpt_step": 0}, r"ckpt_step = 0 and nothing is loaded; give --load DIR or drop it"),
        ({"checkpoint__finetune": True}, r"finetune = true and nothing is loaded"),
        ({"checkpoint__no_load_optim": True}, r"no_load_optim = true and nothing is loaded"),
    ],
)
def test_a_run_that_lacks_something_is_told(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_training(tiny(**{"data__mock_data": True} | values), 1)
