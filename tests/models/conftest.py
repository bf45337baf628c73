"""Models that these suites share: the packaged one, transformers on the same files, tiny ones made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trieway.worker.tokenizer import Tokenizer

MakeTiny = Callable[..., Path]


@pytest.fixture(scope="session")
def tokenizer(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer(smollm2_dir)


@pytest.fixture(scope="session")
def reference(smollm2_dir: Path) -> Any:
    """transformers' own model on the directory that the worker loads, float32."""
    return load_reference(smollm2_dir)


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> MakeTiny:
    """Writes a random model of few weights with transformers; keywords go to its LlamaConfig."""

    def make(**changes: Any) -> Path:
        from transformers import LlamaConfig, LlamaForCausalLM

        settings: dict[str, Any] = {
            "vocab_size": 97,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "initializer_range": 0.3,
        }
        torch.manual_seed(7)
        model = LlamaForCausalLM(LlamaConfig(**(settings | changes)))
        with torch.no_grad():  # norms start at one, which would hide a missing one
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.uniform_(0.5, 1.5)
        path = tmp_path_factory.mktemp("tiny")
        model.save_pretrained(path)
        return path

    return make


def load_reference(model_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
