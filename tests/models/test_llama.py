"""Forward passes of small random models against transformers on the same files: each feature of the family once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.conftest import MakeTiny, load_reference
from trieway.worker.core.sequence import Work
from trieway.worker.models.config import ModelConfig, read_config
from trieway.worker.models.errors import ModelBroken, ModelUnsupported
from trieway.worker.models.rope import inverse_frequencies
from trieway.worker.runner import ModelRunner

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "no grouping": {"num_key_value_heads": 6},
    "one kv head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 32},
    "llama3 rope": {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "large epsilon": {"rms_norm_eps": 0.5},
}


def prefill(model_dir: Path, ids: list[int], **options: Any) -> Tensor:
    """Logits of every position, computed in chunks of 50."""
    runner = ModelRunner(model_dir, kv_tokens=len(ids), device="cpu", **{"dtype": "fp32", **options})
    pages = range(len(ids))
    parts = []
    for start in range(0, len(ids), 50):
        chunk = tuple(ids[start : start + 50])
        work = Work(id="a", tokens=chunk, start=start, pages=pages[: start + len(chunk)], samples=False)
        parts.append(runner.step([work], {"a"}).every["a"])
    return torch.cat(parts)


@pytest.mark.parametrize("attention", ["sdpa", "blocked"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(make_tiny: MakeTiny, variant: str, attention: str) -> None:
    model_dir = make_tiny(**VARIANTS[variant])
    ids = [(i * i + 3) % 97 for i in range(220)]
    with torch.inference_mode():
        wanted = load_reference(model_dir)(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(prefill(model_dir, ids, attention=attention), wanted, atol=2e-4, rtol=1e-4)


def test_bf16_stays_near_the_float32_model(make_tiny: MakeTiny) -> None:
    model_dir = make_tiny(initializer_range=0.1)
    ids = [(i * 7) % 97 for i in range(120)]
    exact, rounded = prefill(model_dir, ids), prefill(model_dir, ids, dtype="bf16")
    assert rounded.dtype == torch.float32
    assert float((exact - rounded).abs().mean()) < 0.05 * float(exact.std())


@pytest.mark.parametrize("variant", ["llama3 rope", "linear rope", "plain"])
def test_rotary_frequencies_equal_transformers(make_tiny: MakeTiny, variant: str) -> None:
    model_dir = make_tiny(**VARIANTS[variant])
    config = read_config(model_dir)
    wanted = load_reference(model_dir).model.rotary_emb.inv_freq
    torch.testing.assert_close(inverse_frequencies(config.rope, config.head_dim), wanted, rtol=1e-6, atol=0)


def write_config(tmp_path: Path, **changes: Any) -> Path:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    } | changes
    present = {name: value for name, value in config.items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(present))
    return tmp_path


def test_config_defaults(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path))
    assert config == ModelConfig(
        layers=1,
        hidden=8,
        intermediate=16,
        heads=2,
        kv_heads=2,
        head_dim=4,
        vocabulary=10,
        context_tokens=2048,
        norm_epsilon=1e-6,
        rope=config.rope,
        tied_embeddings=False,
    )
    assert config.rope.theta == 10000
    assert config.kv_bytes_per_token == 1 * 2 * 2 * 4 * 2


def test_both_spellings_of_rope_are_read(tmp_path: Path) -> None:
    old = read_config(write_config(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3)).rope
    new = read_config(write_config(tmp_path, rope_parameters={**LLAMA3, "rope_theta": 5e5})).rope
    assert old == new
    assert (old.kind, old.factor, old.original_context) == ("llama3", 8.0, 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ...},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2}},
        {"partial_rotary_factor": 0.5},
    ],
)
def test_what_would_change_the_arithmetic_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelUnsupported):
        read_config(write_config(tmp_path, **changes))


@pytest.mark.parametrize("changes", [{"hidden_size": ...}, {"vocab_size": "many"}])
def test_a_broken_config_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelBroken, match=r"config\.json"):
        read_config(write_config(tmp_path, **changes))


def test_a_config_that_is_no_json_object(tmp_path: Path) -> None:
    for text in ("[1]", "{", ""):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelBroken, match=r"config\.json"):
            read_config(tmp_path)


def test_missing_or_misshapen_tensors_are_named(make_tiny: MakeTiny) -> None:
    from safetensors.torch import load_file, save_file

    model_dir = make_tiny()
    tensors = load_file(model_dir / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    short = {**tensors, name: tensors[name][:3].clone()}
    save_file(short, model_dir / "model.safetensors")
    with pytest.raises(ModelBroken, match=name):
        ModelRunner(model_dir, kv_tokens=8, device="cpu")
    del short[name]
    save_file(short, model_dir / "model.safetensors")
    with pytest.raises(ModelBroken, match=name):
        ModelRunner(model_dir, kv_tokens=8, device="cpu")
    (model_dir / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(ModelBroken, match="cannot be read"):
        ModelRunner(model_dir, kv_tokens=8, device="cpu")
