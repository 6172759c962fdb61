"""Universal checkpoints: weights under Hugging Face's names come in, anything else is refused, nothing is run."""

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.errors import ExportError
from megatron_tlm.export.families import tensor_names
from megatron_tlm.export.hugging_face import export_hugging_face
from megatron_tlm.export.incoming import import_hugging_face
from tests.unit.export.trained import save_model, small_config

TRAP = Path(tempfile.gettempdir()) / "tlm-universal-trap"


class Trap:
    """Unpickling it would write a file."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (TRAP,))  # type: ignore[return-value]


@pytest.fixture
def universal(tmp_path: Path) -> Path:
    """As ds_to_universal lays it out, for a model whose names are the library's."""
    path, *_ = save_model(tmp_path / "ck", small_config(tied=True))
    export_hugging_face(path, tmp_path / "hf")
    with Reader(path) as reader:
        for ours, theirs in tensor_names(reader.manifest.facts.shape).items():
            folder = tmp_path / "universal" / "zero" / f"module.{theirs}"
            folder.mkdir(parents=True)
            torch.save({"param": reader.read(ours, "weight"), "cat_dim": 0}, folder / "fp32.pt")
            torch.save({"param": torch.zeros(1)}, folder / "exp_avg.pt")
            torch.save(torch.tensor(3.0), folder / "step.pt")
    return tmp_path / "universal"


def test_weights_come_in(universal: Path, tmp_path: Path) -> None:
    imported = import_hugging_face(universal, tmp_path / "back", config_file=tmp_path / "hf" / "config.json")
    with Reader(tmp_path / "ck" / "step-00000007") as ours, Reader(imported.path) as theirs:
        assert ours.manifest.tensors.keys() == theirs.manifest.tensors.keys()
        assert all(torch.equal(ours.read(*key), theirs.read(*key)) for key in ours.manifest.tensors)


def fuse(zero: Path) -> None:
    (zero / "module.model.layers.0.self_attn.q_proj.weight").rename(zero / "0.attention.query_key_value.weight")


def set_trap(zero: Path) -> None:
    with open(zero / "module.model.norm.weight" / "fp32.pt", "wb") as file:
        pickle.dump({"param": Trap()}, file)


def not_a_tensor(zero: Path) -> None:
    torch.save({"param": 3}, zero / "module.model.norm.weight" / "fp32.pt")


def empty(zero: Path) -> None:
    for path in zero.glob("*/fp32.pt"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (fuse, r"lacks model\.layers\.0\.self_attn\.q_proj\.weight; give a whole"),
        (set_trap, r"model\.norm\.weight/fp32\.pt cannot be read \(.*\); give a file that holds nothing but tensors"),
        (not_a_tensor, r"param is int, not a tensor"),
        (empty, r"holds no \*/fp32\.pt; give what ds_to_universal wrote"),
    ],
)
def test_what_does_not_map_is_refused(
    damage: Callable[[Path], None], message: str, universal: Path, tmp_path: Path
) -> None:
    damage(universal / "zero")
    with pytest.raises(ExportError, match=message):
        import_hugging_face(universal, tmp_path / "back", config_file=tmp_path / "hf" / "config.json")
    assert not (tmp_path / "back").exists()
    assert not TRAP.exists()


def test_the_configuration_has_to_be_given(universal: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"config\.json cannot be read"):
        import_hugging_face(universal, tmp_path / "back")
