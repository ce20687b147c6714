"""What a catalogue and a memory calculation need of a GGUF file: geometry, size, parameters.

`python -m shoal.gguf_facts FILE` prints it as JSON, or the defect with exit code 1.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.gguf import Array, GgufError, GgufFault, GgufHeader, Value, read_header
from shoal.kv_budget import KvShape
from shoal.model_names import quantisation

# Far above any model; llama.cpp's own bound on layers is 512.
_MAX_LAYERS = 512
_MAX_HEADS = 4_096
_MAX_WIDTH = 1 << 20
_MAX_CONTEXT_TOKENS = 1 << 30
# The longest templates of real models have some 20 kB.
MAX_TEMPLATE_CHARS = 512 * 1024
_STRING = 8
# Architectures whose files need not say how many heads they have.
_WITHOUT_ATTENTION = ("mamba", "rwkv")
_TOKENS = "tokenizer.ggml.tokens"
# Parallel to the tokens, where they are there at all.
_PER_TOKEN = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")
# Ids that must name a token; other *_token_id keys are checked alike.
_TOKEN_ID = "_token_id"  # noqa: S105 - the end of a key's name
# I8 to I64 and F64: llama.cpp has no kernels that multiply with them and ends with SIGSEGV.
_NO_WEIGHTS = frozenset({24, 25, 26, 27, 28})
# Names of ggml's tensor types, for files whose name does not tell.
_TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """One model file, as its header describes it."""

    architecture: str
    quantisation: str
    num_parameters: int
    file_bytes: int
    context_tokens: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    key_head_dim: int
    value_head_dim: int
    vocab_tokens: int
    has_chat_template: bool

    def kv_shape(self, kv_type: str) -> KvShape:
        """The KV cache's geometry for elements of `kv_type`."""
        return KvShape(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            key_head_dim=self.key_head_dim,
            value_head_dim=self.value_head_dim,
            kv_type=kv_type,
        )


def scan(path: Path) -> GgufFacts:
    """Read, check and describe the file. Raises GgufError, OSError."""
    header = read_header(path)
    if not header.tensors:
        raise GgufError(GgufFault.TENSOR, "it has no tensors")
    return facts_of(header, path.name)


def facts_of(header: GgufHeader, file_name: str = "") -> GgufFacts:
    """The facts of a header that was read. Raises GgufError."""
    keys = _Keys(header.keys)
    split = header.keys.get("split.count", 1)
    if isinstance(split, int) and split > 1:
        raise GgufError(
            GgufFault.SPLIT, f"it is one of {split} parts; join them (llama-gguf-split --merge)"
        )
    attends = not keys.architecture.startswith(_WITHOUT_ATTENTION)
    heads = keys.number("attention.head_count", 0, _MAX_HEADS, None if attends else 0)
    width = keys.number("embedding_length", 1, _MAX_WIDTH)
    head_dim = width // max(1, heads)
    kinds = Counter[int]()
    for tensor in header.tensors:
        if tensor.kind in _NO_WEIGHTS and len(tensor.shape) > 1:
            raise GgufError(
                GgufFault.TYPE, f"{tensor.name[:64]!r} is a matrix of a type without kernels"
            )
        kinds[tensor.kind] += tensor.num_elements
    of_most = _TYPE_NAMES.get(kinds.most_common(1)[0][0], "") if kinds else ""
    template = header.keys.get("tokenizer.chat_template", "")
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARS:
        raise GgufError(GgufFault.VALUE, "its chat template is no text, or far too long")
    return GgufFacts(
        architecture=keys.architecture,
        quantisation=quantisation(file_name) or of_most,
        num_parameters=sum(tensor.num_elements for tensor in header.tensors),
        file_bytes=header.file_bytes,
        context_tokens=keys.number("context_length", 1, _MAX_CONTEXT_TOKENS),
        num_layers=keys.number("block_count", 1, _MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=keys.number("attention.head_count_kv", 0, _MAX_HEADS, heads),
        key_head_dim=keys.number("attention.key_length", 0, _MAX_WIDTH, head_dim),
        value_head_dim=keys.number("attention.value_length", 0, _MAX_WIDTH, head_dim),
        vocab_tokens=_check_tokenizer(header),
        has_chat_template=bool(template),
    )


class _Keys:
    """A model's numbers, below its architecture's name."""

    def __init__(self, keys: dict[str, Value]) -> None:
        self._keys = keys
        architecture = keys.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise GgufError(GgufFault.GEOMETRY, "the header does not say general.architecture")
        self.architecture = architecture[:64]

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number; of one value a layer the mean, rounded up."""
        full_name = f"{self.architecture}.{name}"
        value = self._keys.get(full_name, default)
        if value is None:
            raise GgufError(GgufFault.GEOMETRY, f"the header does not say {full_name}")
        values = value if isinstance(value, list) else [value]
        if not values or any(type(each) is not int or not least <= each <= most for each in values):
            raise GgufError(GgufFault.GEOMETRY, f"{full_name} is not from {least} to {most}")
        total = sum(int(each) for each in values if isinstance(each, int))
        return -(-total // len(values))


def _check_tokenizer(header: GgufHeader) -> int:
    """Tokens of the vocabulary; 0 when the file has none. Raises GgufError."""
    tokens = header.keys.get(_TOKENS)
    if tokens is None:
        return 0
    if not isinstance(tokens, Array) or tokens.kind != _STRING or tokens.count == 0:
        raise GgufError(GgufFault.TOKENIZER, f"{_TOKENS} is no list of texts")
    for name in _PER_TOKEN:
        value = header.keys.get(name)
        if value is None:
            continue
        count = value.count if isinstance(value, Array) else 0
        count = len(value) if isinstance(value, list) else count
        if count != tokens.count:
            raise GgufError(
                GgufFault.TOKENIZER, f"{name} has {count} entries for {tokens.count} tokens"
            )
    for name, value in header.keys.items():
        if not name.startswith("tokenizer.ggml.") or not name.endswith(_TOKEN_ID):
            continue
        # Some files write 2^32 - 1 for "none".
        if type(value) is not int or not (-1 <= value < tokens.count or value == (1 << 32) - 1):
            raise GgufError(GgufFault.TOKENIZER, f"{name} names no token")
    return tokens.count


def main(arguments: list[str]) -> int:
    """Print the facts; 1 and the defect for a file that cannot be served."""
    try:
        facts = scan(Path(arguments[0]))
    except (GgufError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    print(json.dumps(asdict(facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
