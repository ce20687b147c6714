"""A random-weight recurrent model (Mamba), which has no KV cache to cut into blocks."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.harness.tiny_llama_model import add_vocabulary

NUM_VOCAB = 320
_WIDTH, _INNER, _STATE, _RANK, _KERNEL, _LAYERS = 32, 64, 16, 4, 4, 2


def write_tiny_recurrent_model(path: Path) -> Path:
    """Write the model as GGUF."""
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(1024)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(_LAYERS)
    writer.add_ssm_conv_kernel(_KERNEL)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(writer, NUM_VOCAB)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0.0, 0.2, shape).astype(np.float32))

    tensor("token_embd.weight", NUM_VOCAB, _WIDTH)
    tensor("output_norm.weight", _WIDTH)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        tensor(f"{block}.attn_norm.weight", _WIDTH)
        tensor(f"{block}.ssm_in.weight", 2 * _INNER, _WIDTH)
        tensor(f"{block}.ssm_conv1d.weight", _INNER, _KERNEL)
        tensor(f"{block}.ssm_conv1d.bias", _INNER)
        tensor(f"{block}.ssm_x.weight", _RANK + 2 * _STATE, _INNER)
        tensor(f"{block}.ssm_dt.weight", _INNER, _RANK)
        tensor(f"{block}.ssm_dt.bias", _INNER)
        tensor(f"{block}.ssm_a", _INNER, _STATE)
        tensor(f"{block}.ssm_d", _INNER)
        tensor(f"{block}.ssm_out.weight", _WIDTH, _INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
