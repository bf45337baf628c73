"""Small GGUF files, written with the `gguf` package as llama.cpp's converter would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
HIDDEN, HEADS, KV_HEADS, LAYERS, FEED_FORWARD = 32, 4, 2, 2, 64
TOKENS = ["<|end|>", "<|endoftext|>", "a", "b", "ab", "Ġ", "0", "1", "Ċ"]
CONTROL = 2


def permute(weight: Array, heads: int) -> Array:
    """What llama.cpp does to q and k: row i of a head's first half goes next to row i of its second half."""
    rows, _ = weight.shape
    size = rows // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = weight[head * size + i]
            out[head * size + 2 * i + 1] = weight[head * size + size // 2 + i]
    return out


def tensors(seed: int = 0) -> dict[str, Array]:
    """Random weights under transformers' names."""
    rng = np.random.default_rng(seed)
    kv = KV_HEADS * HIDDEN // HEADS

    def draw(*shape: int) -> Array:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    made = {"model.embed_tokens.weight": draw(len(TOKENS), HIDDEN), "model.norm.weight": draw(HIDDEN)}
    for layer in range(LAYERS):
        shapes = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
            "mlp.up_proj": (FEED_FORWARD, HIDDEN),
            "mlp.down_proj": (HIDDEN, FEED_FORWARD),
        }
        made.update({f"model.layers.{layer}.{name}.weight": draw(*shape) for name, shape in shapes.items()})
    return made


NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, weights: dict[str, Array], **changes: Any) -> Path:
    """A file with these weights. Keywords: architecture, pre (tokenizer rules), scaling, head (an untied output), extra
    (name of one more tensor), eos (id or None)."""
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if "scaling" in changes:
        writer.add_rope_scaling_type(gguf.RopeScalingType(changes["scaling"]))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * CONTROL + [1] * (len(TOKENS) - CONTROL))
    writer.add_token_merges(["a b"])
    if changes.get("eos", 0) is not None:
        writer.add_eos_token_id(changes.get("eos", 0))
    for name, value in weights.items():
        layer, _, part = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
        if name.startswith("model.layers."):
            heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(part)
            writer.add_tensor(f"blk.{layer}.{NAMES[part]}.weight", permute(value, heads) if heads else value)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    if "head" in changes:
        writer.add_tensor("output.weight", changes["head"])
    if "extra" in changes:
        writer.add_tensor(changes["extra"], np.zeros(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
