from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kv.fetching import Phase, Tier, usable_blocks
from agent.kv.ledger import SeqKey
from agent.kv.pacing import Pace
from agent.kv.write_behind import WriteBehind, WriteJob
from shoal.blocks import BlockHash
from tests.harness.kv_rig import BLOCK_BYTES, LIVENESS_S, SEALED_BYTES, Rig, prompt, right_bytes


@contextlib.contextmanager
def running_writes() -> Iterator[tuple[WriteBehind, threading.Event]]:
    """A queue of two blocks whose writer waits for the event."""
    go_on = threading.Event()

    def write(_: object) -> None:
        go_on.wait(LIVENESS_S)

    writes = WriteBehind("test-write", write, 2 * BLOCK_BYTES)
    try:
        yield writes, go_on
    finally:
        go_on.set()
        writes.close(LIVENESS_S)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.stop()


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "lock")


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (128, 0), (129, 1), (257, 2)])
def test_the_last_prompt_token_is_always_prefilled(tokens: int, blocks: int) -> None:
    assert usable_blocks(tokens) == blocks


def test_a_prefix_comes_back_from_the_host(rig: Rig) -> None:
    assert rig.run(prompt(1, 2, 3)).num_tokens == 0
    again = rig.run(prompt(1, 2, 9))
    assert again.tiers == (Tier.HOST, Tier.HOST)
    assert again.tokens_by_tier() == {"host": 256}
    assert rig.cache.counters()["kv_hit_blocks_host"] == 2


def test_a_shared_prefix_is_held_once(rig: Rig) -> None:
    for last in range(5):
        rig.run(prompt(1, 2, 3, 10 + last))
    assert rig.cache.host.used_bytes == 8 * BLOCK_BYTES


def test_another_tenants_identical_prompt_finds_nothing(rig: Rig) -> None:
    rig.run(prompt(1, 2))
    assert rig.run(prompt(1, 2, tenant=b"b"), tenant=b"b").num_tokens == 0


def test_requests_that_arrive_together_compute_a_cold_prefix_once(rig: Rig) -> None:
    first = prompt(1, 2, 3)
    others = [prompt(1, 2, 10 + i) for i in range(7)]
    owner, phase = rig.begin(first)
    assert phase is Phase.READY
    waiting = [rig.begin(hashes) for hashes in others]
    assert {phase for _, phase in waiting} == {Phase.WAITING}
    assert rig.cache.awaited(owner) == 2
    rig.cache.take(owner)
    for index in range(2):
        rig.cache.offer(owner, index, right_bytes(first[index]))
    assert set(rig.cache.poll()) == {seq for seq, _ in waiting}
    for seq, _ in waiting:
        assert rig.cache.take(seq).num_tokens == 256
        rig.cache.close(seq)
    rig.cache.close(owner)
    rig.cache.check_integrity()


def test_one_waiter_takes_over_when_the_owner_is_cancelled(rig: Rig) -> None:
    owner, _ = rig.begin(prompt(1, 2))
    second, _ = rig.begin(prompt(1, 2))
    third, _ = rig.begin(prompt(1, 2))
    rig.cache.close(owner)
    assert rig.cache.poll() == (second,)
    assert rig.cache.take(second).num_tokens == 0
    rig.compute(second, prompt(1, 2))
    assert rig.cache.poll() == (third,)
    assert rig.cache.take(third).num_tokens == 256


def test_closing_twice_and_closing_a_stranger_is_harmless(rig: Rig) -> None:
    seq, _ = rig.begin(prompt(1))
    rig.cache.close(seq)
    rig.cache.close(seq)
    rig.cache.close(SeqKey(999))


def test_the_host_budget_holds_and_the_oldest_prefix_leaves(rig: Rig) -> None:
    small = Rig(host_blocks=4)
    for first in range(10):
        small.run(prompt(first, first, first))
        assert small.cache.host.used_bytes <= 4 * BLOCK_BYTES
    assert small.run(prompt(9, 9, 9)).num_tokens > 0
    assert small.run(prompt(0, 0, 0)).num_tokens == 0
    small.stop()


def test_what_the_host_dropped_comes_back_from_disk(tmp_path: Path) -> None:
    rig = Rig(host_blocks=3, disk_blocks=50, directory=tmp_path)
    rig.run(prompt(1, 2, 3))
    rig.run(prompt(4, 5, 6))
    assert rig.cache.drain(5)
    assert rig.run(prompt(1, 2, 3)).tiers == (Tier.DISK,) * 3
    rig.stop()


def test_the_disk_survives_a_restart_and_torn_files_do_not(tmp_path: Path) -> None:
    rig = Rig(disk_blocks=50, directory=tmp_path)
    rig.run(prompt(1, 2, 3))
    rig.stop()
    (tmp_path / "00").mkdir(exist_ok=True)
    (tmp_path / "00" / "half-written.kv.tmp").write_bytes(b"x")
    (tmp_path / "00" / ("ab" * 32 + ".kv")).write_bytes(b"x" * 10)
    again = Rig(disk_blocks=50, directory=tmp_path)
    assert len(files(tmp_path)) == 3
    assert again.cache.ledger.disk.used_bytes == 3 * SEALED_BYTES
    assert again.run(prompt(1, 2, 3)).tokens_by_tier() == {"disk": 384}
    again.stop()


def test_the_disk_budget_holds_also_when_it_shrank_over_a_restart(tmp_path: Path) -> None:
    rig = Rig(disk_blocks=6, directory=tmp_path)
    for first in range(8):
        rig.run(prompt(first, 1))
    assert rig.cache.drain(5)
    assert len(files(tmp_path)) == 6
    rig.stop()
    smaller = Rig(disk_blocks=2, directory=tmp_path)
    assert len(files(tmp_path)) == 2
    smaller.stop()


def test_a_vanished_or_damaged_file_is_computed_again_and_replaced(tmp_path: Path) -> None:
    rig = Rig(disk_blocks=50, directory=tmp_path)
    rig.run(prompt(1, 2, 3))
    rig.stop()
    path = next(tmp_path.rglob(prompt(1, 2, 3)[1].hex() + ".kv"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    again = Rig(disk_blocks=50, directory=tmp_path)
    assert again.run(prompt(1, 2, 3)).num_tokens == 128
    again.stop()
    healed = Rig(disk_blocks=50, directory=tmp_path)
    assert healed.run(prompt(1, 2, 3)).num_tokens == 384
    healed.stop()


def test_an_unwritable_disk_costs_blocks_and_no_error(tmp_path: Path) -> None:
    rig = Rig(disk_blocks=50, directory=tmp_path)
    block = prompt(1)[0]
    (tmp_path / block.hex()[:2]).write_bytes(b"a file where a folder should be")
    rig.run(prompt(1))
    assert rig.cache.drain(5)
    rig.cache.poll()
    assert block not in rig.cache.ledger.disk
    assert rig.run(prompt(1)).num_tokens == 128
    rig.stop()


def test_a_preempted_sequence_comes_back_whole_within_the_budget() -> None:
    rig = Rig(host_blocks=4)
    rig.run(prompt(1, 2, 3))
    state = right_bytes(prompt(7)[0])
    assert rig.cache.host.park(SeqKey(50), state)
    assert rig.cache.host.park(SeqKey(51), state)
    assert rig.cache.host.used_bytes <= 4 * BLOCK_BYTES
    assert rig.run(prompt(1, 2, 3)).num_tokens == 256
    back = rig.cache.host.unpark(SeqKey(50))
    assert back is not None
    assert back.tobytes() == state.tobytes()
    assert rig.cache.host.unpark(SeqKey(50)) is None
    rig.cache.check_integrity()
    rig.stop()


def test_random_traffic_keeps_ledger_and_bytes_in_step(tmp_path: Path) -> None:
    rng = random.Random(11)
    rig = Rig(host_blocks=12, disk_blocks=64, directory=tmp_path)
    running: dict[SeqKey, tuple[object, ...]] = {}
    for _ in range(1500):
        event = rng.random()
        if event < 0.35 and len(running) < 8:
            hashes = prompt(*[rng.randrange(2) for _ in range(rng.randrange(6))])
            seq, phase = rig.begin(hashes)
            running[seq] = (hashes, phase)
        elif event < 0.75 and running:
            seq = rng.choice(list(running))
            hashes, phase = running[seq]
            if phase is Phase.READY:
                restored = rig.cache.take(seq)
                for block, data in zip(hashes, restored.blocks, strict=False):  # type: ignore[call-overload]
                    assert data.tobytes() == right_bytes(block).tobytes()
                rig.compute(seq, hashes)  # type: ignore[arg-type]
                rig.cache.close(seq)
                del running[seq]
        elif event < 0.80 and running:
            seq = rng.choice(list(running))
            rig.cache.close(seq)
            del running[seq]
        else:
            rig.awake.wait(0.01)
            rig.awake.clear()
        for seq in rig.cache.poll():
            running[seq] = (running[seq][0], Phase.READY)
        rig.cache.check_integrity()
    assert rig.cache.counters()["kv_hit_blocks_host"] > 100
    assert rig.cache.counters()["kv_hit_blocks_disk"] > 0
    rig.stop()
    assert rig.cache.ledger.num_tables == 0


def test_writers_give_way_the_less_the_fuller_their_queue() -> None:
    pace = Pace(max_delay_s=30.0)
    pace.hold()
    pace.give_way(1.0)  # returns at once, or this test hangs for half a minute
    with running_writes() as (writes, go_on):
        assert writes.offer(WriteJob(BlockHash(b""), data=right_bytes(prompt(1)[0])))
        assert writes.fill == 0.5
        go_on.set()
        assert writes.drain(LIVENESS_S)
        assert writes.fill == 0.0


def test_a_clean_end_writes_what_is_queued_though_somebody_waits(tmp_path: Path) -> None:
    rig = Rig(disk_blocks=50, directory=tmp_path)
    rig.cache.urgent(somebody_waits=True)
    rig.run(prompt(*range(30)))
    rig.stop()
    assert len(files(tmp_path)) == 30


def test_a_folder_in_use_by_another_cache_is_refused_until_that_one_ends(tmp_path: Path) -> None:
    first = Rig(disk_blocks=6, directory=tmp_path)
    with pytest.raises(BlockingIOError):
        Rig(disk_blocks=6, directory=tmp_path)
    first.stop()
    Rig(disk_blocks=6, directory=tmp_path).stop()
