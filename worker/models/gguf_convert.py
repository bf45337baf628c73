"""GGUF to the files that every other tool reads: safetensors, config, tokenizer.

Keeps true: weights are stored as the exact float32 values that the quantised file stands for, in the layout of
transformers' LlamaForCausalLM (GGUF keeps the rows of q and k permuted for its own rotary form). The tokenizer follows
the file's named pre-tokenisation rules. Does not know the cache (catalog.py) or torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .byte_level import byte_alphabet
from .errors import ModelBroken, ModelUnsupported

CONVERSION = 2
"""Raised when the output changes, so that older cached conversions are left alone."""

Array = npt.NDArray[np.float32]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# Control tokens that end a text wherever a model emits them, beside the file's own eos.
_ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>", "<|end|>")
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


def convert(source: Path, target: Path) -> None:
    """Write the model of the GGUF file `source` into the existing directory `target`.

    Raises ModelUnsupported for an architecture or a tokenizer other than Llama with byte-level BPE, ModelBroken for a
    file that cannot be read.
    """
    import gguf
    from safetensors.numpy import save_file

    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError, OSError) as error:
        raise ModelBroken(f"{source} cannot be read as GGUF ({error}): fetch the file again") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        kind = fields.get("general.architecture")
        raise ModelUnsupported(f"{source.name} is of architecture {kind}: only llama can be converted from GGUF")
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tensors: dict[str, Array] = {}
    for tensor in reader.tensors:
        values = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        tensors[hf_name(tensor.name)] = _hf_layout(tensor.name, values, config)
    weights = target / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors makes it private to the user
    ends = end_ids(fields)
    _write(target / "config.json", config)
    _write(target / "generation_config.json", {"bos_token_id": config["bos_token_id"], "eos_token_id": ends})
    _write(target / "tokenizer.json", tokenizer_json(fields))
    _write(target / "tokenizer_config.json", _tokenizer_config(fields))


def hf_name(name: str) -> str:
    """The transformers name of a GGUF tensor. Raises ModelUnsupported for one that Llama does not have."""
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.weight"
    block, layer, part = (stem.split(".") + ["", ""])[:3]
    if block == "blk" and part in _LAYER_NAMES and kind == "weight":
        return f"model.layers.{int(layer)}.{_LAYER_NAMES[part]}.weight"
    raise ModelUnsupported(f"the GGUF file holds a tensor {name}: use the model's safetensors directory instead")


def unpermute(weight: Array, heads: int) -> Array:
    """Undo GGUF's reordering of q or k rows, [heads * head_dim, hidden]: rotary pairs (2i, 2i+1) to (i, i + half)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _hf_layout(name: str, values: Array, config: Mapping[str, Any]) -> Array:
    if name.endswith("attn_q.weight"):
        return unpermute(values, int(config["num_attention_heads"]))
    if name.endswith("attn_k.weight"):
        return unpermute(values, int(config["num_key_value_heads"]))
    return values


def _config(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    try:
        heads = int(fields["llama.attention.head_count"])
        hidden = int(fields["llama.embedding_length"])
        # 32-bit in the file: round to what the model's own config says.
        epsilon = float(f"{float(fields['llama.attention.layer_norm_rms_epsilon']):.6g}")
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "bos_token_id": _optional_id(fields, "bos"),
            "eos_token_id": end_ids(fields)[0],
            "head_dim": int(fields.get("llama.attention.key_length", hidden // heads)),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": int(fields["llama.feed_forward_length"]),
            "max_position_embeddings": int(fields["llama.context_length"]),
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": int(fields["llama.block_count"]),
            "num_key_value_heads": int(fields.get("llama.attention.head_count_kv", heads)),
            "rms_norm_eps": epsilon,
            "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
            "rope_scaling": None,
            "tie_word_embeddings": tied,
            "torch_dtype": "float32",
            "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        }
    except KeyError as error:
        raise ModelBroken(f"the GGUF file lacks the field {error}: fetch the file again") from error
    if fields.get("llama.rope.scaling.type") not in (None, "none"):
        raise ModelUnsupported("the GGUF file scales its rotary positions: use the model's safetensors directory")
    return config


def _optional_id(fields: Mapping[str, Any], kind: str) -> int | None:
    value = fields.get(f"tokenizer.ggml.{kind}_token_id")
    return None if value is None else int(value)


def end_ids(fields: Mapping[str, Any]) -> list[int]:
    """Ids that end a text, the file's own eos first. Raises ModelBroken where there are none."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    eos = _optional_id(fields, "eos")
    others = [i for i, text in enumerate(tokens) if kinds[i] == _CONTROL and text in _ENDS and i != eos]
    ids = ([] if eos is None else [eos]) + others
    if not ids:
        raise ModelBroken("the GGUF file names no end-of-text token: use the model's safetensors directory")
    return ids


def tokenizer_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The `tokenizers` form of the file's tokenizer: byte-level BPE, pre-tokenised by the file's named rules."""
    model, rules = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2" or rules != "smollm":
        raise ModelUnsupported(
            f"the GGUF file's tokenizer is {model}/{rules}: only gpt2/smollm can be converted; "
            "use the model's safetensors directory"
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": text, **plain, "special": kinds[i] == _CONTROL}
        for i, text in enumerate(tokens)
        if kinds[i] in (_CONTROL, _USER_DEFINED)
    ]
    # `smollm`: each digit stands alone, then GPT-2's own pattern (ByteLevel's `use_regex`).
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}, byte_level]
    if missing := sorted(set(byte_alphabet()) - set(tokens)):
        # Bytes without a token are dropped, but only after they have kept their neighbours from merging.
        pattern = {"Regex": "|".join(re.escape(char) for char in missing)}
        steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]

    def text(kind: str) -> str | None:
        token_id = _optional_id(fields, kind)
        return None if token_id is None else tokens[token_id]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "bos_token": text("bos"),
        "eos_token": text("eos"),
        "unk_token": text("unknown"),
        "pad_token": text("padding"),
        "clean_up_tokenization_spaces": False,
        "chat_template": fields.get("tokenizer.chat_template"),
        "model_max_length": int(fields["llama.context_length"]),
    }


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
