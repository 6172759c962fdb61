"""The weights of a DeepSpeed universal checkpoint, where its parameters have Hugging Face's names.

    zero/model.layers.0.mlp.up_proj.weight/fp32.pt      {"param": tensor, ...}
                                          /exp_avg.pt   not read: moments stay behind, and so do step and schedule

These are torch files: they are opened with `weights_only=True`, which makes tensors and plain values and nothing else,
and mapped, so that only what is asked for is read. Fused or renamed parameters (Megatron-DeepSpeed's
query_key_value, a pipeline's numbered layers) have no place to go and are refused by name.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from megatron_tlm.checkpoint.tensor_file import Entry, dtype_code
from megatron_tlm.checkpoint.tiling import Extent
from megatron_tlm.errors import ExportError

FOLDER = "zero"
_WEIGHT_FILE = "fp32.pt"
_WRAPPER = "module."  # what an engine's own names start with


class UniversalWeights:
    """The tensors of one universal checkpoint by Hugging Face's names, in float32."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tensors: dict[str, torch.Tensor] = {}
        self._paths = {
            path.parent.name.removeprefix(_WRAPPER): path
            for path in sorted((directory / FOLDER).glob(f"*/{_WEIGHT_FILE}"))
        }
        if not self._paths:
            raise ExportError(f"{directory / FOLDER} holds no */{_WEIGHT_FILE}; give what ds_to_universal wrote")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._paths)

    def entry(self, name: str) -> Entry:
        tensor = self._tensor(name)
        return Entry(name, dtype_code(tensor.dtype), tuple(tensor.shape))

    def read(self, name: str, offset: Extent, size: Extent) -> torch.Tensor:
        return self._tensor(name)[
            tuple(slice(start, start + extent) for start, extent in zip(offset, size, strict=True))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tensors.clear()

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            self._tensors[name] = _load(self._paths[name])
        return self._tensors[name]


def _load(path: Path) -> torch.Tensor:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever a damaged zip or a refused pickle makes torch raise
        reason = str(error).splitlines()[0][:200]
        raise ExportError(f"{path} cannot be read ({reason}); give a file that holds nothing but tensors") from None
    tensor = content.get("param") if isinstance(content, dict) else content
    if not isinstance(tensor, torch.Tensor):
        raise ExportError(f"{path}: param is {type(tensor).__name__}, not a tensor; give what ds_to_universal wrote")
    return tensor.detach()
