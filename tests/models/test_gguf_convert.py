"""GGUF files to model directories: layout, names, tokenizer, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.models import gguf_files
from tests.models.conftest import load_reference
from trieway.worker.core.sequence import Work
from trieway.worker.models.errors import ModelBroken, ModelUnsupported
from trieway.worker.models.gguf_convert import convert, end_ids, hf_name, unpermute
from trieway.worker.runner import ModelRunner
from trieway.worker.tokenizer import Tokenizer


def converted(tmp_path: Path, **changes: Any) -> Path:
    target = tmp_path / "out"
    target.mkdir()
    convert(gguf_files.write_gguf(tmp_path / "m.gguf", gguf_files.tensors(), **changes), target)
    return target


@given(heads=st.integers(1, 5), half=st.integers(1, 5), columns=st.integers(1, 4))
def test_unpermute_undoes_permute(heads: int, half: int, columns: int) -> None:
    weight = np.arange(heads * half * 2 * columns, dtype=np.float32).reshape(-1, columns)
    assert np.array_equal(unpermute(gguf_files.permute(weight, heads), heads), weight)


def test_the_weights_come_back_exactly(tmp_path: Path) -> None:
    got, wanted = load_file(converted(tmp_path) / "model.safetensors"), gguf_files.tensors()
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        assert got[name].dtype == np.float32
        assert np.array_equal(got[name], value), name


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_and_the_worker_agree_on_the_directory(tmp_path: Path, tied: bool) -> None:
    head = {} if tied else {"head": np.random.default_rng(1).normal(size=(9, 32)).astype(np.float32)}
    model_dir = converted(tmp_path, **head)
    assert json.loads((model_dir / "config.json").read_text())["tie_word_embeddings"] is tied
    ids = [2, 3, 4, 5, 6, 7, 8, 2, 2]
    with torch.inference_mode():
        wanted = load_reference(model_dir)(torch.tensor([ids])).logits[0]
    runner = ModelRunner(model_dir, kv_tokens=16, device="cpu", dtype="fp32")
    got = runner.step([Work(id="a", tokens=tuple(ids), start=0, pages=range(9), samples=True)], {"a"}).every["a"]
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_the_tokenizer_follows_the_file(tmp_path: Path) -> None:
    made = Tokenizer(converted(tmp_path))
    assert made.token_bytes == [b"<|end|>", b"<|endoftext|>", b"a", b"b", b"ab", b" ", b"0", b"1", b"\n"]
    assert made.encode("ab01 a<|end|>") == [4, 6, 7, 5, 2, 0]
    assert made.encode("a\x07b") == [2, 3], "a byte without a token is dropped, but keeps its neighbours apart"
    assert made.special_ids == {0, 1}
    assert made.eos_ids == {0, 1}
    assert made.chat_template is None


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"architecture": "gemma"}, "gemma"),
        ({"pre": "llama-bpe"}, "gpt2/llama-bpe"),
        ({"scaling": "yarn"}, "rotary"),
        ({"extra": "rope_freqs.weight"}, "rope_freqs"),
        ({"extra": "blk.0.attn_q.bias"}, "bias"),
    ],
)
def test_what_cannot_be_converted_is_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelUnsupported, match=what):
        converted(tmp_path, **changes)


def test_scaling_none_is_no_scaling(tmp_path: Path) -> None:
    assert (converted(tmp_path, scaling="none") / "config.json").is_file()


def test_a_file_cut_short_is_broken(tmp_path: Path) -> None:
    whole = gguf_files.write_gguf(tmp_path / "m.gguf", gguf_files.tensors()).read_bytes()
    for size in (4, 30, len(whole) // 2):
        (tmp_path / "m.gguf").write_bytes(whole[:size])
        with pytest.raises(ModelBroken, match="fetch the file again"):
            convert(tmp_path / "m.gguf", tmp_path)


def test_names() -> None:
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hf_name("output.weight") == "lm_head.weight"
    assert hf_name("blk.12.ffn_gate.weight") == "model.layers.12.mlp.gate_proj.weight"
    for name in ("blk.1.ffn_gate.bias", "blk.1.nothing.weight", "other.weight", "output", "blk"):
        with pytest.raises(ModelUnsupported, match=name):
            hf_name(name)


def test_end_ids_start_with_the_files_own() -> None:
    fields = {
        "tokenizer.ggml.tokens": ["x", "<|endoftext|>", "<|im_end|>", "</s>"],
        "tokenizer.ggml.token_type": [1, 3, 3, 1],
        "tokenizer.ggml.eos_token_id": 2,
    }
    assert end_ids(fields) == [2, 1]
    del fields["tokenizer.ggml.eos_token_id"]
    assert end_ids(fields) == [1, 2]
    fields["tokenizer.ggml.token_type"] = [1, 1, 1, 1]
    with pytest.raises(ModelBroken, match="end-of-text"):
        end_ids(fields)


@pytest.mark.model
def test_the_packaged_model(smollm2_dir: Path) -> None:
    config = json.loads((smollm2_dir / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert (config["num_hidden_layers"], config["head_dim"], config["tie_word_embeddings"]) == (30, 64, True)
    assert json.loads((smollm2_dir / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
