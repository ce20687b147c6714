"""Prefixes of any length: branches within a block, replies, and the books that hold them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.kv.codec import Block, compose_state, cut_block, parse_state
from agent.kv.fetching import Phase
from agent.kv.layout import CacheShape, Geometry, LayoutFault, StateLayoutError, TensorRows
from agent.kv.ledger import SeqKey
from agent.kv.lru import TierIndex
from agent.kv.prefix_cache import PrefixCache, Prompt
from agent.kv.tails import MAX_BRANCHES, Branches
from shoal.blocks import BLOCK_TOKENS, BlockHash, BlockSpace
from tests.harness.kv_rig import BLOCK_BYTES, GEOMETRY, SEALED_BYTES, TENANT, Rig

SLOTS = 4
SPACE = BlockSpace("model", "f16", "f16", "1", b"")
ROOT = BlockHash(b"root")


def rows_of(tokens: list[int], geometry: Geometry = GEOMETRY) -> list[Block]:
    """Blocks whose rows follow from all tokens up to each, as real KV does."""
    digest = np.cumsum(np.array(tokens, dtype=np.uint64) * 2654435761 % 1000003)
    blocks = []
    for start in range(0, len(tokens), BLOCK_TOKENS):
        seeds = digest[start : start + BLOCK_TOKENS]
        tensors = [
            ((seeds[:, None] * (number + 3) + np.arange(tensor.row_bytes)) % 251).astype(np.uint8)
            for cache in geometry.caches
            for number, tensor in enumerate(cache.tensors)
        ]
        blocks.append(np.concatenate([tensor.ravel() for tensor in tensors]))
    return blocks


class Context:
    """Slots that hold states of any length."""

    def __init__(self) -> None:
        self.states: dict[int, bytes] = {}
        self.num_exports = 0

    def compute(self, slot: int, tokens: list[int]) -> None:
        blob = compose_state(GEOMETRY, SLOTS, slot, rows_of(tokens))
        self.states[slot] = blob.tobytes()

    def state_get(self, slot: int, /) -> memoryview:
        self.num_exports += 1
        return memoryview(self.states[slot])

    def state_buffer(self, num_bytes: int, /) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def state_set(self, slot: int, blob: memoryview, /) -> int:
        self.states[slot] = blob.tobytes()
        return len(blob)

    def clear(self, slot: int, /) -> None:
        self.states.pop(slot, None)


class Driver:
    """Runs sequences through a prefix cache as the engine does; checks every restored row."""

    def __init__(self, host_blocks: int = 64, disk_blocks: int = 0, disk: Path | None = None):
        self.context = Context()
        self.rig = Rig(host_blocks=host_blocks, disk_blocks=disk_blocks, directory=disk)
        parts = (self.rig.cache, self.context, SPACE, (GEOMETRY, SLOTS))
        self.prefixes = PrefixCache(*parts, any_length=True)
        self.next_key = 0

    def begin(self, prompt: list[int], tenant: bytes = TENANT) -> tuple[SeqKey, Phase]:
        self.next_key += 1
        seq = SeqKey(self.next_key)
        return seq, self.prefixes.begin(seq, Prompt(prompt, tenant, 700.0))

    def restore(self, seq: SeqKey, slot: int, prompt: list[int]) -> int:
        self.context.clear(slot)
        num_tokens = self.prefixes.restore(seq, slot).num_tokens
        if num_tokens:
            expected = compose_state(GEOMETRY, SLOTS, slot, rows_of(prompt[:num_tokens]))
            assert self.context.states[slot] == expected.tobytes()
        return num_tokens

    def end(self, seq: SeqKey, slot: int, tokens: list[int]) -> None:
        self.context.compute(slot, tokens)
        self.prefixes.ended(seq, slot, tokens)
        self.prefixes.close(seq)
        self.rig.cache.check_integrity()

    def run(self, prompt: list[int], reply: list[int] | None = None, **who: bytes) -> int:
        """One sequence alone; the tokens that it found."""
        seq, phase = self.begin(prompt, **who)
        if phase is not Phase.READY:
            self.rig.wait_ready(seq)
        num_tokens = self.restore(seq, 0, prompt)
        self.end(seq, 0, prompt + (reply or []))
        return num_tokens


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.rig.stop()


def some(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(count)]


@pytest.mark.parametrize("common", [16, 30, 100, 127, 129, 143, 144, 200, 300])
def test_the_longest_common_prefix_of_any_length_comes_back(driver: Driver, common: int) -> None:
    stem = some(1, common)
    assert driver.run(stem + some(2, 60)) == 0
    spare = common % BLOCK_TOKENS
    expected = common if spare == 0 or spare >= 16 else common - spare
    assert driver.run(stem + some(3, 60)) == expected


def test_less_than_16_tokens_are_not_worth_it(driver: Driver) -> None:
    driver.run(some(1, 15) + some(2, 9))
    assert driver.run(some(1, 15) + some(3, 9)) == 0
    exports = driver.context.num_exports
    driver.run(some(1, 15) + some(2, 9) + some(5, 15))
    assert driver.context.num_exports == exports


def test_the_last_prompt_token_is_computed_also_of_an_equal_prompt(driver: Driver) -> None:
    for length in (40, 128, 129, 256, 300):
        driver.run(some(length, length))
        assert driver.run(some(length, length)) == length - 1


def test_a_reply_is_found_by_the_next_turn(driver: Driver) -> None:
    history = some(1, 50)
    found = []
    for turn in range(6):
        found.append(driver.run(history, reply := some(10 + turn, 70)))
        history = history + reply + some(20 + turn, 20)
    # 6 tokens behind the third block are not kept.
    assert found == [0, 120, 210, 300, 384, 480]


def test_a_sequence_is_copied_once(driver: Driver) -> None:
    prompt = some(1, 300)
    seq, _ = driver.begin(prompt)
    driver.restore(seq, 0, prompt)
    driver.context.compute(0, prompt)
    for end in (128, 256, 300):
        assert driver.prefixes.prefilled(seq, 0, end) == 0
    driver.end(seq, 0, prompt + some(2, 100))
    assert driver.context.num_exports == 1
    # Everything is known: nothing is copied again.
    driver.run(prompt, some(2, 100))
    assert driver.context.num_exports == 1


def test_whole_blocks_leave_before_the_end_when_somebody_waits(driver: Driver) -> None:
    prompt = some(1, 300)
    seq, _ = driver.begin(prompt)
    driver.restore(seq, 0, prompt)
    driver.context.compute(0, prompt)
    driver.prefixes.prefilled(seq, 0, 300)
    other, phase = driver.begin(prompt)
    assert phase is Phase.WAITING
    assert driver.prefixes.prefilled(seq, 0, 300) == 2
    assert driver.prefixes.ready() == (other,)
    assert driver.restore(other, 1, prompt) == 256
    driver.end(seq, 0, prompt)
    driver.end(other, 1, prompt)


def test_another_tenant_finds_nothing(driver: Driver) -> None:
    for length in (60, 200):
        driver.run(some(length, length))
        assert driver.run(some(length, length), tenant=b"other") == 0


def test_without_any_length_only_whole_prompt_blocks_are_kept() -> None:
    rig, context = Rig(), Context()
    prefixes = PrefixCache(rig.cache, context, SPACE, (GEOMETRY, SLOTS))
    prompt = some(1, 200)
    for seq, expected in ((SeqKey(1), 0), (SeqKey(2), 128)):
        prefixes.begin(seq, Prompt(prompt, TENANT, 700.0))
        assert prefixes.restore(seq, 0).num_tokens == expected
        context.compute(0, prompt)
        prefixes.prefilled(seq, 0, 200)
        context.compute(0, prompt + some(2, 200))
        assert prefixes.ended(seq, 0, prompt + some(2, 200)) == 0
        prefixes.close(seq)
    assert rig.cache.host.used_bytes == BLOCK_BYTES
    rig.stop()


def test_partial_blocks_count_against_the_budget_and_leave_with_the_oldest() -> None:
    driver = Driver(host_blocks=2)
    for seed in range(20):
        driver.run(some(seed, 100))
        assert driver.rig.cache.host.used_bytes <= 2 * BLOCK_BYTES
    assert driver.run(some(0, 100)) == 0
    assert driver.run(some(19, 100)) == 99
    driver.rig.stop()


def test_partial_blocks_of_many_conversations_come_back_after_a_restart(tmp_path: Path) -> None:
    # Short ones have no whole block: all of them continue the same nothing.
    talks = [some(seed, length) for seed, length in enumerate((40, 60, 127, 128, 150, 200, 300))]
    first = Driver(disk_blocks=50, disk=tmp_path)
    for talk in talks:
        first.run(talk)
    first.rig.stop()
    second = Driver(disk_blocks=50, disk=tmp_path)
    found = [second.run(talk + some(70 + n, 20)) for n, talk in enumerate(talks)]
    assert found == [len(talk) for talk in talks]
    assert second.run(talks[0] + some(70, 20), tenant=b"other") == 0
    second.rig.stop()
    third = Driver(disk_blocks=50, disk=tmp_path)
    longer = [talk + some(70 + n, 20) for n, talk in enumerate(talks)]
    assert [third.run(talk) for talk in longer] == [len(talk) - 1 for talk in longer]
    third.rig.stop()


def test_what_a_longer_partial_block_begins_with_leaves_the_disk(tmp_path: Path) -> None:
    driver = Driver(disk_blocks=50, disk=tmp_path)
    for length in (40, 60, 100):
        driver.run(some(1, length))
    driver.rig.stop()
    assert len(list(tmp_path.rglob("*.kv"))) == 1


def test_the_tier_of_a_partial_block_is_told(tmp_path: Path) -> None:
    first = Driver(disk_blocks=50, disk=tmp_path)
    first.run(some(1, 200))
    first.rig.stop()
    second = Driver(disk_blocks=50, disk=tmp_path)
    for expected in ({"disk": 199}, {"host": 199}):
        seq, phase = second.begin(some(1, 200))
        if phase is not Phase.READY:
            second.rig.wait_ready(seq)
        restored = second.prefixes.restore(seq, 0)
        second.prefixes.close(seq)
        assert restored.tokens_by_tier() == expected
    second.rig.stop()


def test_a_partial_block_that_the_host_dropped_is_read_from_disk(tmp_path: Path) -> None:
    driver = Driver(host_blocks=2, disk_blocks=50, disk=tmp_path)
    driver.run(some(1, 100))
    for seed in range(2, 6):
        driver.run(some(seed, 256))
    assert driver.rig.cache.drain(5)
    assert driver.run(some(1, 100) + some(9, 5)) == 100
    driver.rig.stop()


@pytest.mark.parametrize("at", [30, 200, -1], ids=["tokens", "rows", "cut"])
def test_damaged_partial_blocks_are_computed_again_and_replaced(tmp_path: Path, at: int) -> None:
    driver = Driver(disk_blocks=50, disk=tmp_path)
    driver.run(some(1, 40))
    driver.rig.stop()
    (path,) = tmp_path.rglob("*.kv")
    data = bytearray(path.read_bytes())
    if at < 0:
        del data[at:]
    else:
        data[at] ^= 1
    path.write_bytes(data)
    for expected in (0, 39):
        again = Driver(disk_blocks=50, disk=tmp_path)
        assert again.run(some(1, 40)) == expected
        again.rig.stop()


def test_partial_blocks_on_disk_are_bounded_for_each_prefix_and_in_bytes(tmp_path: Path) -> None:
    driver = Driver(disk_blocks=4, disk=tmp_path)
    for seed in range(2 * MAX_BRANCHES):
        driver.run(some(seed, 16))
        assert driver.rig.cache.ledger.disk.used_bytes <= 4 * SEALED_BYTES
    assert driver.rig.cache.drain(5)
    assert len(list(tmp_path.rglob("*.kv"))) == MAX_BRANCHES
    driver.rig.stop()


def test_random_conversations_restore_right_rows_and_keep_the_books() -> None:
    rng = random.Random(5)
    driver = Driver(host_blocks=9)
    stems = [some(seed, length) for seed, length in enumerate((20, 90, 128, 150, 300))]
    histories = [[*rng.choice(stems)] for _ in range(6)]
    running: dict[SeqKey, tuple[int, list[int], Phase]] = {}
    free, found = list(range(SLOTS)), 0
    for step in range(600):
        if rng.random() < 0.5:
            number = rng.randrange(len(histories))
            prompt = histories[number] + some(1000 + step, rng.choice((1, 3, 20, 130)))
            seq, phase = driver.begin(prompt)
            running[seq] = (number, prompt, phase)
        elif running:
            seq = rng.choice(list(running))
            number, prompt, phase = running.pop(seq)
            if phase is Phase.READY and rng.random() < 0.9:
                slot = rng.choice(free)
                found += driver.restore(seq, slot, prompt)
                tokens = prompt + some(5000 + step, rng.randrange(200))
                # Some are cancelled, amid the prefill or later.
                driver.end(seq, slot, tokens[: rng.choice((len(prompt) - 1, len(tokens)))])
                histories[number] = tokens if len(tokens) < 900 else [*rng.choice(stems)]
            driver.prefixes.close(seq)
        for seq in driver.prefixes.ready():
            running[seq] = (*running[seq][:2], Phase.READY)
        driver.rig.cache.check_integrity()
    for seq in tuple(running):
        driver.prefixes.close(seq)
    assert found > 10_000
    assert driver.rig.cache.ledger.num_tables == 0
    driver.rig.stop()


def test_branches_are_bounded_and_the_useless_named() -> None:
    branches, held = Branches(), TierIndex(1000)
    names = [BlockHash(bytes([number])) for number in range(40)]
    for name in names:
        held.admit(name, 1)
    assert branches.add(ROOT, names[0], some(0, 40)) == ()
    assert branches.add(ROOT, names[1], some(0, 40) + some(1, 9)) == (names[0],)
    assert branches.add(ROOT, names[2], some(0, 40) + some(1, 88)) == (names[1],)
    assert branches.add(ROOT, names[2], some(0, 40) + some(1, 88)) == ()
    assert branches.longest(ROOT, [*some(0, 40), 1], held) == (names[2], 40)
    for number in range(3, 3 + MAX_BRANCHES - 1):
        assert branches.add(ROOT, names[number], some(number, 20)) == ()
    # A whole block is only forgotten here: its table's hashes still find it.
    assert branches.add(ROOT, names[30], some(30, 20)) == ()
    assert branches.longest(ROOT, some(0, 40), held)[1] == 0
    assert branches.add(ROOT, names[31], some(31, 20)) == (names[3],)
    held.discard(names[31])
    assert branches.longest(ROOT, some(31, 20), held)[1] == 0
    branches.forget_all_but(TierIndex(0))
    assert len(branches) == 0


def test_a_cut_block_composes_like_the_rows_it_holds() -> None:
    window = CacheShape(1, (TensorRows(1, 6), TensorRows(2, 10)))
    geometry = Geometry(1, (CacheShape(2, (TensorRows(1, 4),) * 4), window))
    tokens = some(1, 300)
    whole = rows_of(tokens, geometry)
    for count in (1, 77, 128):
        cut = cut_block(geometry, whole[1], count)
        blob = compose_state(geometry, 3, 1, [whole[0], cut])
        state = parse_state(blob, 1, geometry)
        assert state.num_tokens == 128 + count
        np.testing.assert_array_equal(state.copy_tokens(range(128, 128 + count)), cut)
        np.testing.assert_array_equal(state.copy_block(0), whole[0])
    with pytest.raises(StateLayoutError) as caught:
        compose_state(geometry, 3, 1, [cut_block(geometry, whole[0], 5), whole[1]])
    assert caught.value.fault is LayoutFault.BLOCK_SIZE
    with pytest.raises(StateLayoutError):
        cut_block(geometry, cut_block(geometry, whole[0], 5), 6)
    with pytest.raises(IndexError):
        state.copy_tokens(range(200, 257))
