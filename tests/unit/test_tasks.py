"""Ending tasks that lose a cancellation, as Python 3.11's wait_for makes them."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import shoal
from shoal.tasks import cancelled


async def test_task_that_drops_a_cancellation_is_ended() -> None:
    drops = 2

    async def loop_that_drops() -> None:
        nonlocal drops
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                if not drops:
                    raise
                drops -= 1

    task = asyncio.create_task(loop_that_drops())
    await asyncio.sleep(0)
    await cancelled([task], again_s=0.01)
    assert task.cancelled()
    assert drops == 0


async def test_wait_for_that_loses_a_cancellation_does_not_keep_a_loop_alive() -> None:
    """The case itself: the inner task has just ended when the loop's task is cancelled."""
    inner_ends = asyncio.Event()
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.wait_for(inner_ends.wait(), 3_600)
            inner_ends.clear()

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    inner_ends.set()
    await asyncio.sleep(0)
    await cancelled([task], again_s=0.01)
    assert task.cancelled()
    assert rounds == (2 if sys.version_info < (3, 12) else 1)


async def test_failed_and_ended_tasks_count_as_seen() -> None:
    async def fail() -> None:
        raise ValueError("seen")

    failed, ended = asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(0))
    await asyncio.wait([failed, ended])
    await cancelled([failed, ended])
    await cancelled([])


def test_no_code_of_the_product_waits_with_wait_for() -> None:
    """`asyncio.timeout` does the same and loses no cancellation."""
    root = Path(shoal.__file__).parents[1]
    found = [
        path.relative_to(root)
        for package in ("shoal", "orchestrator", "agent", "cloud")
        for path in (root / package).rglob("*.py")
        if re.search(r"\bwait_for\(", path.read_text())
    ]
    assert found == []
