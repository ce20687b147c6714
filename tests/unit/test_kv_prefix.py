from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from agent.kv.codec import compose_state, parse_state
from agent.kv.fetching import Phase
from agent.kv.ledger import SeqKey
from agent.kv.prefix_cache import PrefixCache, Prompt
from shoal.blocks import BLOCK_TOKENS, BlockHash, BlockSpace, block_hashes
from tests.harness.kv_rig import GEOMETRY, TENANT, Rig, right_bytes

SLOTS = 4
SPACE = BlockSpace("model", "f16", "f16", "1", b"")
A, B, C = SeqKey(1), SeqKey(2), SeqKey(3)


class Context:
    """Slots that hold states; `prefill` fills them with the blocks' right bytes."""

    def __init__(self) -> None:
        self.states: dict[int, bytes] = {}
        self.num_exports = 0
        self.refuse = False

    def prefill(self, slot: int, hashes: tuple[BlockHash, ...]) -> None:
        blocks = [right_bytes(block) for block in hashes]
        self.states[slot] = compose_state(GEOMETRY, SLOTS, slot, blocks).tobytes()

    def state_get(self, slot: int, /) -> memoryview:
        self.num_exports += 1
        return memoryview(self.states[slot])

    def state_buffer(self, num_bytes: int, /) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def state_set(self, slot: int, blob: memoryview, /) -> int:
        if self.refuse:
            return 0
        self.states[slot] = blob.tobytes()
        return len(blob)

    def clear(self, slot: int, /) -> None:
        self.states.pop(slot, None)


def tokens(*path: int, extra: int = 1) -> list[int]:
    return [token for number in path for token in [number] * BLOCK_TOKENS] + [999] * extra


def hashes(*path: int) -> tuple[BlockHash, ...]:
    space = BlockSpace("model", "f16", "f16", "1", TENANT)
    return block_hashes(space, tokens(*path))


def prompt(*path: int, extra: int = 1) -> Prompt:
    return Prompt(tokens(*path, extra=extra), TENANT, prefill_tokens_per_s=700.0)


@pytest.fixture
def context() -> Context:
    return Context()


@pytest.fixture
def prefixes(context: Context) -> Iterator[PrefixCache]:
    rig = Rig()
    yield PrefixCache(rig.cache, context, SPACE, (GEOMETRY, SLOTS))
    rig.stop()


def test_a_finished_prompts_blocks_leave_once_and_come_back_into_another_slot(
    context: Context, prefixes: PrefixCache
) -> None:
    assert prefixes.begin(A, prompt(1, 2)) is Phase.READY
    assert prefixes.restore(A, 0).num_tokens == 0
    for num_blocks in (1, 2):
        context.prefill(0, hashes(1, 2)[:num_blocks])
        exported = prefixes.prefilled(A, 0, num_blocks * BLOCK_TOKENS)
        assert exported == (2 if num_blocks == 2 else 0)
    assert prefixes.prefilled(A, 0, 2 * BLOCK_TOKENS + 1) == 0
    assert context.num_exports == 1
    prefixes.close(A)
    assert prefixes.begin(B, prompt(1, 2)) is Phase.READY
    assert prefixes.restore(B, 3).num_tokens == 256
    state = parse_state(context.states[3], 3, GEOMETRY)
    assert state.copy_block(1).tobytes() == right_bytes(hashes(1, 2)[1]).tobytes()


def test_putting_a_prefix_into_its_slot_is_timed_for_the_sequence_and_the_tier(
    context: Context,
) -> None:
    now_s = [10.0]
    rig = Rig(clock=lambda: now_s[0])
    prefixes = PrefixCache(rig.cache, context, SPACE, (GEOMETRY, SLOTS))
    set_state = context.state_set

    def slow(slot: int, blob: memoryview, /) -> int:
        now_s[0] += 0.25
        return set_state(slot, blob)

    context.state_set = slow  # type: ignore[method-assign]
    prefixes.begin(A, prompt(1))
    assert prefixes.restore(A, 0).restore_ms == {}
    context.prefill(0, hashes(1))
    prefixes.prefilled(A, 0, 128)
    prefixes.close(A)
    for seq in (B, C):
        prefixes.begin(seq, prompt(1))
        assert prefixes.restore(seq, 1).restore_ms == {"host": 250.0}
    assert prefixes.counters()["kv_restore_ms_host"] == 500.0
    rig.stop()


def test_a_prompt_of_whole_blocks_keeps_a_token_to_prefill(
    context: Context, prefixes: PrefixCache
) -> None:
    prefixes.begin(A, prompt(1, 2, extra=0))
    prefixes.restore(A, 0)
    context.prefill(0, hashes(1, 2))
    assert prefixes.prefilled(A, 0, 256) == 2
    prefixes.begin(B, prompt(1, 2, extra=0))
    assert prefixes.restore(B, 1).num_tokens == 128


def test_blocks_leave_early_when_another_sequence_waits_for_them(
    context: Context, prefixes: PrefixCache
) -> None:
    prefixes.begin(A, prompt(1, 2, 3, 4))
    prefixes.restore(A, 0)
    assert prefixes.begin(B, prompt(1, 2, 9)) is Phase.WAITING
    context.prefill(0, hashes(1))
    assert prefixes.prefilled(A, 0, 128) == 0
    context.prefill(0, hashes(1, 2))
    assert prefixes.prefilled(A, 0, 256) == 2
    assert prefixes.ready() == (B,)
    assert prefixes.restore(B, 1).tokens_by_tier() == {"host": 256}


def test_tokens_decoded_after_the_prompt_never_leave(
    context: Context, prefixes: PrefixCache
) -> None:
    prefixes.begin(A, prompt(1))
    prefixes.restore(A, 0)
    context.prefill(0, hashes(1, 7))
    assert prefixes.prefilled(A, 0, 256) == 1
    assert prefixes.begin(B, prompt(1, 7)) is Phase.READY
    assert prefixes.restore(B, 1).num_tokens == 128


def test_a_refused_restore_is_a_cold_run(context: Context, prefixes: PrefixCache) -> None:
    prefixes.begin(A, prompt(1))
    prefixes.restore(A, 0)
    context.prefill(0, hashes(1))
    prefixes.prefilled(A, 0, 128)
    prefixes.close(A)
    context.refuse = True
    prefixes.begin(B, prompt(1))
    with capture_logs() as logs:
        assert prefixes.restore(B, 1).num_tokens == 0
    assert [entry["event"] for entry in logs] == ["kv_restore_refused"]


def test_an_unreadable_state_is_not_exported(context: Context, prefixes: PrefixCache) -> None:
    prefixes.begin(A, prompt(1))
    prefixes.restore(A, 0)
    context.states[0] = b"something else"
    with capture_logs() as logs:
        assert prefixes.prefilled(A, 0, 128) == 0
    assert [entry["event"] for entry in logs] == ["kv_export_refused"]


def test_a_parked_state_comes_back_once_and_is_dropped_on_close(
    context: Context, prefixes: PrefixCache
) -> None:
    context.prefill(0, hashes(1, 2))
    assert prefixes.park(A, 0)
    assert prefixes.park(B, 0)
    saved = context.states.pop(0)
    assert prefixes.resume(A, 2)
    assert context.states[2] == saved
    assert not prefixes.resume(A, 2)
    prefixes.close(B)
    assert prefixes.cache.host.parked_bytes == 0
