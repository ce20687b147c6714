"""A random-weight llama model with a vocabulary and a chat template, of some 100 kB."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

_WIDTH, _FEED, _HEADS, _KV_HEADS, _LAYERS = 32, 64, 2, 1, 2
_CONTEXT_TOKENS = 1024
# Tokens of llama.cpp's SentencePiece type: three control tokens, 256 bytes, some pieces.
_CONTROL, _UNKNOWN, _BYTE, _NORMAL = 3, 2, 6, 1
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@dataclass(frozen=True, slots=True)
class TinyLlama:
    """What of the file may differ."""

    template: str = CHAT_TEMPLATE
    seed: int = 7


def write_tiny_llama_model(path: Path, what: TinyLlama | None = None) -> Path:
    """Write the model as GGUF."""
    what = what or TinyLlama()
    rng = np.random.default_rng(what.seed)
    num_vocab = len(_vocabulary())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_CONTEXT_TOKENS)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    add_vocabulary(writer, num_vocab)
    writer.add_chat_template(what.template)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0.0, 0.2, shape).astype(np.float32))

    tensor("token_embd.weight", num_vocab, _WIDTH)
    tensor("output_norm.weight", _WIDTH)
    tensor("output.weight", num_vocab, _WIDTH)
    head_dim = _WIDTH // _HEADS
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        tensor(f"{block}.attn_norm.weight", _WIDTH)
        tensor(f"{block}.ffn_norm.weight", _WIDTH)
        tensor(f"{block}.attn_q.weight", _WIDTH, _WIDTH)
        tensor(f"{block}.attn_k.weight", _KV_HEADS * head_dim, _WIDTH)
        tensor(f"{block}.attn_v.weight", _KV_HEADS * head_dim, _WIDTH)
        tensor(f"{block}.attn_output.weight", _WIDTH, _WIDTH)
        tensor(f"{block}.ffn_gate.weight", _FEED, _WIDTH)
        tensor(f"{block}.ffn_up.weight", _FEED, _WIDTH)
        tensor(f"{block}.ffn_down.weight", _WIDTH, _FEED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter, num_tokens: int) -> None:
    """A SentencePiece vocabulary of at least 292 tokens, the later ones made up."""
    tokens = _vocabulary()
    tokens += [(f"token{n}".encode(), _NORMAL) for n in range(len(tokens), num_tokens)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _vocabulary() -> list[tuple[bytes, int]]:
    special = [(b"<unk>", _UNKNOWN), (b"<s>", _CONTROL), (b"</s>", _CONTROL)]
    raw = [(f"<0x{byte:02X}>".encode(), _BYTE) for byte in range(256)]
    letters = [(bytes([code]), _NORMAL) for code in range(0x61, 0x7B)]
    words = [f"▁{word}".encode() for word in ("a", "the", "fish", "is", "of", "and", "sea")]
    return [*special, *raw, *letters, *((word, _NORMAL) for word in words)]
