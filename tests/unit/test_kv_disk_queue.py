"""Many sequences want their prefixes from one disk at once, as after a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kv.disk import DiskTier
from agent.kv.fetching import Phase
from tests.harness.kv_rig import LIVENESS_S, Rig, prompt

PROMPTS = [prompt(2 * number, 2 * number + 1) for number in range(8)]
# Below what a request waits for a disk that does nothing (400 ms).
READ_S = 0.3


class SlowDisk:
    """Lets reads end one by one, each taking READ_S of a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._gate = threading.Semaphore(0)

    def clock(self) -> float:
        return self.now_s

    def wait(self) -> None:
        if not self._gate.acquire(timeout=LIVENESS_S):
            raise TimeoutError("nobody let the read go on")

    def end_one(self, rig: Rig) -> None:
        """Let one read end and wait until the cache was told."""
        rig.awake.clear()
        self._gate.release()
        assert rig.awake.wait(LIVENESS_S)
        self.now_s += READ_S

    def open(self) -> None:
        self._gate.release(1000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    slow, read = SlowDisk(), DiskTier.read

    def read_slowly(tier: DiskTier, block):
        slow.wait()
        return read(tier, block)

    monkeypatch.setattr(DiskTier, "read", read_slowly)
    yield slow
    slow.open()


def restarted(folder: Path, disk: SlowDisk, prefill_tokens_per_s: float) -> Rig:
    """A cache that finds all prompts on disk and nothing in memory."""
    first = Rig(disk_blocks=64, directory=folder)
    for hashes in PROMPTS:
        first.run(hashes)
    first.stop()
    return Rig(
        disk_blocks=64,
        directory=folder,
        clock=disk.clock,
        prefill_tokens_per_s=prefill_tokens_per_s,
    )


def test_who_waits_for_a_turn_at_a_disk_that_works_gets_the_prefix(tmp_path, disk):
    rig = restarted(tmp_path, disk, prefill_tokens_per_s=50)  # 5 s for a prompt
    begun = [rig.begin(hashes) for hashes in PROMPTS]
    assert {phase for _, phase in begun} == {Phase.RESTORING}
    ready = set()
    for _ in range(2 * len(PROMPTS)):
        disk.end_one(rig)
        ready.update(rig.cache.poll())
    assert ready == {seq for seq, _ in begun}
    assert [len(rig.cache.take(seq).blocks) for seq, _ in begun] == [2] * len(PROMPTS)
    rig.stop()


def test_nobody_waits_longer_than_computing_would_take(tmp_path, disk):
    rig = restarted(tmp_path, disk, prefill_tokens_per_s=1000)  # 0.26 s for a prompt
    last = [rig.begin(hashes)[0] for hashes in PROMPTS][-1]
    ready = set()
    for _ in range(4):  # 1.2 s, in which two prompts arrive
        disk.end_one(rig)
        ready.update(rig.cache.poll())
    assert last in ready
    assert rig.cache.take(last).blocks == ()
    disk.open()
    rig.stop()


def test_a_disk_that_hangs_is_given_up(tmp_path, disk):
    rig = restarted(tmp_path, disk, prefill_tokens_per_s=50)
    seqs = [rig.begin(hashes)[0] for hashes in PROMPTS]
    disk.now_s += 0.5
    assert set(rig.cache.poll()) == set(seqs)
    assert [rig.cache.take(seq).blocks for seq in seqs] == [()] * len(seqs)
    disk.open()
    rig.stop()
