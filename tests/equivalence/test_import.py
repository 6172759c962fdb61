"""Training goes on from an imported model as it would from the checkpoint that was exported."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.checkpoint.load import find
from megatron_tlm.config.load import load_file
from megatron_tlm.export.hugging_face import export_hugging_face
from megatron_tlm.export.incoming import import_hugging_face
from tests.equivalence.launching import launch, losses_of, run_config


def finetune(folder: Path, load: Path, config_file: Path | None = None) -> list[float]:
    """Losses of three steps on two tensor ranks from the weights in `load`."""
    config = run_config(folder, load=str(load), finetune=True, exit_interval=3, tensor_model_parallel_size=2)
    if config_file is not None:
        told = load_file(config_file)
        config = replace(config, model=told.model, taper=told.taper)
    ended = launch(config, 2)
    assert ended.codes == [0, 0], ended.complained
    return losses_of(config)


def test_a_model_that_went_out_and_came_back_trains_on(tmp_path: Path) -> None:
    first = run_config(tmp_path / "first", exit_interval=2)
    assert launch(first, 1).codes == [0]
    expected = finetune(tmp_path / "here", tmp_path / "first" / "ck")
    assert len(expected) == 3
    for flavour in ("tapered", "padded"):
        export_hugging_face(find(tmp_path / "first" / "ck"), tmp_path / f"hf-{flavour}", flavour=flavour)
        imported = import_hugging_face(tmp_path / f"hf-{flavour}", tmp_path / flavour)
        losses = finetune(tmp_path / f"back-{flavour}", tmp_path / flavour, imported.config_file)
        # Zero neurons stay zero and change no gradient norm; only sums of other lengths round otherwise.
        assert losses == (pytest.approx(expected, abs=1e-6) if flavour == "padded" else expected)
