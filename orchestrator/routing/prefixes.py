"""Which device saw which prefix: hints over a prompt's text, and a bounded memory of them.

The hub sees no tokens and keeps no text. A hint is a hash of the first N bytes of a
prompt, for a fixed ladder of N; equal hints mean equal beginnings.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from orchestrator.fleet.view import DeviceId
from orchestrator.routing.learning import LearnedQuotient

if TYPE_CHECKING:
    from orchestrator.routing.estimator import Outcome

# The ladder, in bytes of UTF-8: two steps an octave from one block's worth of English to
# 64 KiB, so that what two prompts share is underestimated by a third at most.
PREFIX_BYTES = tuple(size << octave for octave in range(8) for size in (512, 768))
# Bounds of the memory: prefixes, and the newest holders of each.
MAX_PREFIXES = 20_000
MAX_HOLDERS = 4
# A device's cache has other tenants: what was seen longer ago than this is likely evicted.
FORGET_AFTER_MS = 600_000.0
# Weight of the belief that a hit is what it seems, in tokens of predicted hits.
_TRUST_SEED_TOKENS = 2_048.0
# Last prompts from which is told what all begin with, and how many it takes.
_COMMON_WINDOW = 15
_COMMON_LEAST = 3
# Devices give one another whole blocks of so many tokens.
BLOCK_TOKENS = 128


def hints_of(prompt: bytes, salt: bytes = b"") -> tuple[int, ...]:
    """Hints of a prompt, coarse to fine; hint i covers its first PREFIX_BYTES[i] bytes.

    `salt` (of the tenant) keeps prompts of different tenants apart, as their caches are.
    """
    digest = blake2b(salt[:64], digest_size=8)
    hints, done = [], 0
    for size in PREFIX_BYTES:
        if size > len(prompt):
            break
        digest.update(prompt[done:size])
        done = size
        hints.append(int.from_bytes(digest.digest(), "big"))
    return tuple(hints)


class _Seen:
    """A prefix: devices that were given it and when, oldest first, and what was found of it.

    `found_bytes`: how much of the prompt that last matched it, and no finer one, was cached.
    """

    __slots__ = ("found_bytes", "holders")

    def __init__(self) -> None:
        self.holders: dict[DeviceId, float] = {}
        self.found_bytes = 0


class PrefixMemory:
    """Devices that were given a prompt with a prefix, the newest MAX_HOLDERS of each."""

    def __init__(self) -> None:
        # By (model, hint), oldest first.
        self._seen: OrderedDict[tuple[str, int], _Seen] = OrderedDict()
        # By (model, finest hint) of who is being served: the finest prefix known before.
        self._matched: OrderedDict[tuple[str, int], _Seen] = OrderedDict()
        # By model: cached over predicted tokens. Not every model can be cached.
        self._trust: dict[str, LearnedQuotient] = {}
        # By model: tokens that were cached of prompts that begin like no other.
        self._common: dict[str, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def cached_bytes(
        self, model: str, hints: tuple[int, ...], now_ms: float
    ) -> Mapping[DeviceId, int]:
        """Bytes of the prompt's beginning that devices are likely to hold; others hold none.

        Beginnings are known up to a step of the ladder; where they end in truth, an earlier
        prompt that matched the same step has shown.
        """
        found: dict[DeviceId, int] = {}
        trust = self._trust.get(model)
        share = 1.0 if trust is None else min(1.0, trust.value)
        for size, hint in zip(PREFIX_BYTES, hints, strict=False):
            seen = self._seen.get((model, hint))
            if seen is None:
                # Who has not seen the coarser prefix has not seen the finer one either.
                break
            num_bytes = max(int(size * share), seen.found_bytes)
            for device_id, seen_ms in seen.holders.items():
                if now_ms - seen_ms <= FORGET_AFTER_MS:
                    found[device_id] = num_bytes
        return found

    def common_tokens(self, model: str) -> int:
        """Tokens that all prompts begin with (a template's), as far as devices held them."""
        common = self._common.get(model, ())
        # The middle one: a prompt that happened to be known to the device says nothing.
        return sorted(common)[len(common) // 2] if len(common) >= _COMMON_LEAST else 0

    def observe(self, outcome: Outcome) -> None:
        """A request ended: how many tokens were cached in truth; unforeseen hits count too."""
        model, hints = outcome.model, outcome.prefix_hints
        cached, predicted = outcome.cached_tokens, outcome.predicted_cached_tokens
        matched = self._matched.pop((model, hints[-1]), None) if hints else None
        if matched is not None:
            share = min(1.0, cached / max(1, outcome.prompt_tokens))
            matched.found_bytes = int(share * outcome.prompt_bytes)
        else:
            self._common.setdefault(model, deque(maxlen=_COMMON_WINDOW)).append(cached)
        if not (cached or predicted):
            return
        trust = self._trust.setdefault(model, LearnedQuotient(1.0, _TRUST_SEED_TOKENS))
        trust.observe(cached, max(cached, predicted))

    def note(self, model: str, hints: tuple[int, ...], device_id: DeviceId, now_ms: float) -> None:
        """The device was given a prompt with these hints, at least one."""
        matched = None
        for hint in hints[: len(PREFIX_BYTES)]:
            key = (model, hint)
            seen = self._seen.get(key)
            if seen is None:
                seen = self._seen[key] = _Seen()
            else:
                matched = seen
                self._seen.move_to_end(key)
            holders = seen.holders
            holders.pop(device_id, None)
            holders[device_id] = now_ms
            if len(holders) > MAX_HOLDERS:
                del holders[next(iter(holders))]
        while len(self._seen) > MAX_PREFIXES:
            self._seen.popitem(last=False)
        if matched is not None:
            self._matched[model, hints[-1]] = matched
            if len(self._matched) > MAX_PREFIXES:
                self._matched.popitem(last=False)

    def forget(self, device_id: DeviceId) -> None:
        """The device is gone, and its cache with it."""
        for key in [key for key, seen in self._seen.items() if device_id in seen.holders]:
            del self._seen[key].holders[device_id]
            if not self._seen[key].holders:
                del self._seen[key]


def cached_tokens(num_bytes: int, prompt_bytes: int, prompt_tokens: int) -> int:
    """Tokens of a prompt that its first `num_bytes` bytes make, never all of it."""
    if prompt_bytes <= 0:
        return 0
    return max(0, min(prompt_tokens - 1, prompt_tokens * num_bytes // prompt_bytes))


def whole_blocks(num_tokens: int) -> int:
    """Tokens in the whole blocks of so many: what devices give one another."""
    return num_tokens // BLOCK_TOKENS * BLOCK_TOKENS
