"""Tensors out of a model directory's safetensors files.

Keeps true: a tensor is read when it is asked for, never the whole file. Does not know what the tensors mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .catalog import weight_files
from .errors import ModelBroken


class TensorFiles:
    """The tensors of a model directory, by name. Raises ModelBroken for what is missing or unreadable."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._files: dict[str, Any] = {}
        for path in weight_files(model_dir):
            try:
                file: Any = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ModelBroken(f"{path} cannot be read ({error}): fetch or convert it again") from error
            names: list[str] = file.keys()
            self._files.update((name, file) for name in names)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, as stored, on the CPU."""
        if name not in self._files:
            raise ModelBroken(f"{self._model_dir} holds no tensor {name}: convert the model again")
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelBroken(f"{name} in {self._model_dir} is {tuple(tensor.shape)}, config.json says {shape}")
        return tensor

    def joined(self, names: tuple[str, ...], rows: tuple[int, ...], columns: int) -> Tensor:
        """Several matrices on top of each other, float32: one product instead of several."""
        parts = [self.get(name, (count, columns)) for name, count in zip(names, rows, strict=True)]
        return torch.cat([part.float() for part in parts])
