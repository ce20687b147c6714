"""A random-weight sliding-window model (Gemma 2's architecture), small enough for any test."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.harness.tiny_llama_model import add_vocabulary

WINDOW_TOKENS = 160
NUM_VOCAB = 512
_WIDTH, _FEED, _HEADS, _HEAD_DIM, _LAYERS = 64, 128, 2, 32, 4


def write_tiny_window_model(path: Path) -> Path:
    """Write the model as GGUF; every other layer sees WINDOW_TOKENS tokens only."""
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "gemma2")
    writer.add_context_length(2048)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(_HEAD_DIM)
    writer.add_value_length(_HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(WINDOW_TOKENS)
    writer.add_attn_logit_softcapping(50.0)
    writer.add_final_logit_softcapping(30.0)
    add_vocabulary(writer, NUM_VOCAB)

    def tensor(name: str, *shape: int) -> None:
        data = rng.normal(0.0, 0.3, shape).astype(np.float32)
        writer.add_tensor(name, data)

    tensor("token_embd.weight", NUM_VOCAB, _WIDTH)
    tensor("output_norm.weight", _WIDTH)
    for layer in range(_LAYERS):
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            tensor(f"blk.{layer}.{norm}.weight", _WIDTH)
        tensor(f"blk.{layer}.attn_q.weight", _HEADS * _HEAD_DIM, _WIDTH)
        tensor(f"blk.{layer}.attn_k.weight", _HEAD_DIM, _WIDTH)
        tensor(f"blk.{layer}.attn_v.weight", _HEAD_DIM, _WIDTH)
        tensor(f"blk.{layer}.attn_output.weight", _WIDTH, _HEADS * _HEAD_DIM)
        tensor(f"blk.{layer}.ffn_gate.weight", _FEED, _WIDTH)
        tensor(f"blk.{layer}.ffn_up.weight", _FEED, _WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", _WIDTH, _FEED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
