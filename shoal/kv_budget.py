"""How much memory the KV cache gets, from the model's geometry and the device's memory.

Pure; every step of the calculation is a line that `shoal models fit` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.blocks import BLOCK_TOKENS

MIB = 1024 * 1024
# Left for the system and for everything else that runs: a tenth, at least this much.
MIN_RESERVE_BYTES = 512 * MIB
RESERVE_FRACTION = 0.10
# llama.cpp's compute buffers and the engine process itself, beside weights and KV.
ENGINE_OVERHEAD_BYTES = 256 * MIB
# Share of what is left after the live context that finished blocks may fill at most.
HOST_TIER_FRACTION = 0.5
# An engine that is told no context length takes this share for its live context.
LIVE_SHARE_OF_AVAILABLE = 0.25
# llama.cpp rounds a sequence's cells up to a multiple of this.
CELL_MULTIPLE = 256
MIN_CONTEXT_TOKENS = 4 * BLOCK_TOKENS

# A running engine's host tier takes a tenth of what is available at its start, and
# never more than this: other engines and the system need memory, too.
HOST_SHARE_OF_AVAILABLE = 0.10
MAX_HOST_BYTES = 4 * 1024 * MIB


class KvElement(StrEnum):
    """Types of the KV cache's elements, by llama.cpp's names."""

    F16 = "f16"
    Q8_0 = "q8_0"


# Bytes of an element: q8_0 stores 32 of them in 34 bytes.
ELEMENT_BYTES: dict[str, float] = {KvElement.F16: 2.0, KvElement.Q8_0: 34 / 32}


def host_tier_bytes(available_bytes: int) -> int:
    """Default budget of a running engine's host tier."""
    return min(MAX_HOST_BYTES, int(available_bytes * HOST_SHARE_OF_AVAILABLE))


def default_context_tokens(
    available_bytes: int, bytes_per_token: int, slots: int, trained_tokens: int
) -> int:
    """Context of each of `slots` sequences when none is asked for; 0: nothing fits."""
    budget = available_bytes * LIVE_SHARE_OF_AVAILABLE
    fits = int(budget / slots / max(1, bytes_per_token)) // CELL_MULTIPLE * CELL_MULTIPLE
    return min(trained_tokens, fits)


@dataclass(frozen=True, slots=True)
class KvShape:
    """A model's KV geometry, as its file declares it."""

    num_layers: int
    num_kv_heads: int
    key_head_dim: int
    value_head_dim: int
    kv_type: str  # a key of ELEMENT_BYTES

    @property
    def bytes_per_token(self) -> int:
        """Layers x KV heads x (K + V head dim) x bytes of an element."""
        elements = self.num_kv_heads * (self.key_head_dim + self.value_head_dim)
        return int(self.num_layers * elements * ELEMENT_BYTES[self.kv_type])


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What is wanted, and of what device."""

    shape: KvShape
    weights_bytes: int
    free_memory_bytes: int
    slots: int
    context_tokens: int  # per sequence


@dataclass(frozen=True, slots=True)
class KvBudget:
    """What fits. `slots` or `context_tokens` may be lower than wanted; 0 slots: nothing fits."""

    slots: int
    context_tokens: int
    live_bytes: int
    host_tier_bytes: int
    lines: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """True when the model can run at all."""
        return self.slots > 0


def plan_kv(request: FitRequest) -> KvBudget:
    """Budget for the live context and the host tier; explains itself line by line.

    When the wish does not fit, slots go first (down to 1), then context (down to
    512 tokens). Raises KeyError for a KV type without a known element size.
    """
    per_token = request.shape.bytes_per_token
    reserve = max(MIN_RESERVE_BYTES, int(request.free_memory_bytes * RESERVE_FRACTION))
    available = request.free_memory_bytes - reserve - request.weights_bytes - ENGINE_OVERHEAD_BYTES
    lines = [
        f"free memory          {_mib(request.free_memory_bytes)}",
        f"- reserve            {_mib(reserve)}  (a tenth, at least 512 MiB)",
        f"- weights            {_mib(request.weights_bytes)}",
        f"- engine             {_mib(ENGINE_OVERHEAD_BYTES)}  (compute buffers, process)",
        f"= for the KV cache   {_mib(available)}",
        f"KV of one token      {per_token:>10} B    ({_formula(request.shape)})",
        f"KV of a block        {_mib(per_token * BLOCK_TOKENS)}  ({BLOCK_TOKENS} tokens)",
    ]
    slots, context = request.slots, request.context_tokens
    slots = max(1, min(slots, available // max(1, context * per_token)))
    if slots * context * per_token > available:
        context = max(0, available // per_token // BLOCK_TOKENS * BLOCK_TOKENS)
    if context < min(MIN_CONTEXT_TOKENS, request.context_tokens):
        lines.append(f"does not fit: not even {MIN_CONTEXT_TOKENS} tokens of context")
        return KvBudget(0, 0, 0, 0, tuple(lines))
    live = slots * context * per_token
    left = max(0, available - live)
    host = min(int(left * HOST_TIER_FRACTION), host_tier_bytes(request.free_memory_bytes))
    lines.append(f"live context         {_mib(live)}  ({slots} slots x {context} tokens)")
    if (slots, context) != (request.slots, request.context_tokens):
        lines.append(f"lowered from {request.slots} slots x {request.context_tokens} tokens to fit")
    lines.append(f"host tier of blocks  {_mib(host)}  (a tenth of what is free, at most 4 GiB)")
    return KvBudget(slots, context, live, host, tuple(lines))


def resident_bytes(shape: KvShape, weights_bytes: int, live_tokens: int, host_bytes: int) -> int:
    """Memory of an engine that holds `live_tokens` in its slots: what `plan_kv` takes from the
    free memory, without the reserve for the rest of the device."""
    live_bytes = shape.bytes_per_token * live_tokens
    return weights_bytes + ENGINE_OVERHEAD_BYTES + live_bytes + host_bytes


def _formula(shape: KvShape) -> str:
    return (
        f"{shape.num_layers} layers x {shape.num_kv_heads} KV heads x "
        f"({shape.key_head_dim} + {shape.value_head_dim}) x "
        f"{ELEMENT_BYTES[shape.kv_type]:g} B, {shape.kv_type}"
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:>10.1f} MiB"
