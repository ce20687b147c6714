"""A loaded GGUF file."""

from __future__ import annotations

import ctypes
import hashlib
import re
from pathlib import Path

import llama_cpp.llama_cpp as llama

from agent.llama.gguf_check import check_gguf
from agent.llama.library import STATE_SEQ_VERSION, LibraryLog, library_version
from agent.llama.vocab import Vocab
from shoal.kv_budget import ELEMENT_BYTES
from shoal.model_names import quantisation


class ModelUnusableError(Exception):
    """The file cannot be served; the text says why."""


class Model:
    """Weights and vocabulary; read-only, so that any thread may use it."""

    def __init__(self, path: Path, library_log: LibraryLog) -> None:
        """Load the file. Raises ModelUnusableError for one that cannot be served."""
        problem = check_gguf(path)
        if problem:
            raise ModelUnusableError(f"{path.name}: {problem}")
        self.path = path
        params = llama.llama_model_default_params()
        params.check_tensors = True
        self.handle = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            reasons = "; ".join(library_log.recent_errors) or "llama.cpp gives no reason"
            raise ModelUnusableError(f"{path.name} does not load: {reasons}")
        if not llama.llama_model_has_decoder(self.handle) or llama.llama_model_has_encoder(
            self.handle
        ):
            raise ModelUnusableError(f"{path.name}: only decoder-only models can be served")
        self.vocab = Vocab(llama.llama_model_get_vocab(self.handle))
        if self.vocab.size <= 0:
            raise ModelUnusableError(f"{path.name} has no vocabulary")

    def metadata(self, key: str) -> str | None:
        """One value of the file's header as text; None when it is absent."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode(errors="replace")
            size = length + 1

    @property
    def chat_template(self) -> str | None:
        """The template that the file carries."""
        text = llama.llama_model_chat_template(self.handle, None)
        return text.decode(errors="replace") if text else None

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return self.metadata("general.architecture") or ""

    @property
    def quantisation(self) -> str:
        """Of most weights: as llama.cpp describes it, else as the file's name claims."""
        buffer = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self.handle, buffer, len(buffer))
        found = re.search(r"\b(I?Q\d\S*|TQ\d_\d|B?F16|F32|MXFP4)\b", buffer.value.decode())
        claimed = quantisation(self.path)
        return claimed or (found.group(1) if found else "")

    @property
    def num_parameters(self) -> int:
        """Weights, counted."""
        count: int = llama.llama_model_n_params(self.handle)
        return count

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        size: int = llama.llama_model_size(self.handle)
        return size

    @property
    def train_context_tokens(self) -> int:
        """Context the model was trained for."""
        tokens: int = llama.llama_model_n_ctx_train(self.handle)
        return tokens

    def kv_bytes_per_token(self, kv_type: str = "f16") -> int:
        """K and V of one token in all layers: layers x KV heads x (K dim + V dim) x bytes.

        With grouped-query attention the KV heads count, not the heads (DOMAIN.md).
        """
        heads = max(1, llama.llama_model_n_head(self.handle))
        head_dim = llama.llama_model_n_embd(self.handle) // heads
        key_dim = int(self.metadata(f"{self.architecture}.attention.key_length") or head_dim)
        value_dim = int(self.metadata(f"{self.architecture}.attention.value_length") or head_dim)
        kv_heads = llama.llama_model_n_head_kv(self.handle)
        layers = llama.llama_model_n_layer(self.handle)
        return int(layers * kv_heads * (key_dim + value_dim) * ELEMENT_BYTES[kv_type])

    @property
    def no_cache_reason(self) -> str:
        """Why this model's KV cannot be cut into blocks; empty when it can."""
        if llama.llama_model_is_recurrent(self.handle) or llama.llama_model_is_hybrid(self.handle):
            return "recurrent state cannot be cut into blocks"
        return ""

    def close(self) -> None:
        """Free the weights; the object is not to be used after."""
        if self.handle:
            llama.llama_model_free(self.handle)
            self.handle = None


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file; reads all of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(sha256: str, kv_type: str) -> str:
    """Hex SHA-256 over all that decides the bytes of this model's KV."""
    parts = (sha256, kv_type, library_version(), str(STATE_SEQ_VERSION))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()
