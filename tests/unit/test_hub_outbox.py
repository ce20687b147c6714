"""Bounded boxes: order, refusal, and an end that a slow peer cannot delay."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.hub.outbox import Outbox
from orchestrator.hub.session import MAX_MERGED_UPDATES, merged
from shoal.v1 import inference_pb2
from tests.harness.hub_rig import delta


async def test_frames_are_taken_in_order_and_together() -> None:
    box: Outbox[int] = Outbox(3)
    assert all(box.put(n) for n in (1, 2, 3))
    assert await box.take() == [1, 2, 3]


async def test_full_box_refuses_and_keeps_what_it_has() -> None:
    box: Outbox[int] = Outbox(1)
    assert box.put(1)
    assert not box.put(2)
    assert await box.take() == [1]


async def test_closed_box_gives_what_waits_and_a_last_frame_even_when_full() -> None:
    box: Outbox[int] = Outbox(1)
    box.put(1)
    box.close(9)
    assert not box.put(2)
    assert await box.take() == [1, 9]
    assert await box.take() == []


async def test_reader_that_waits_gets_the_next_frame() -> None:
    box: Outbox[int] = Outbox(1)
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    box.put(1)
    assert await reader == [1]


async def test_everything_is_written_before_a_closed_box_ends() -> None:
    box: Outbox[int] = Outbox(9)
    written: list[int] = []

    async def write(frames: list[int]) -> None:
        written.extend(frames)

    box.put(1)
    box.close(2)
    assert await box.write_to(write)
    assert written == [1, 2]


async def test_discarded_box_ends_although_the_peer_does_not_read() -> None:
    box: Outbox[int] = Outbox(9)
    writing = asyncio.Event()

    async def never(frames: list[int]) -> None:
        writing.set()
        await asyncio.Event().wait()

    box.put(1)
    task = asyncio.create_task(box.write_to(never))
    await writing.wait()
    box.discard()
    async with asyncio.timeout(10):
        assert await task is False


async def test_error_of_the_writer_is_raised() -> None:
    box: Outbox[int] = Outbox(9)

    async def fail(frames: list[int]) -> None:
        raise OSError("gone")

    box.put(1)
    with pytest.raises(OSError, match="gone"):
        await box.write_to(fail)


def test_waiting_frames_merge_in_order_up_to_a_bound() -> None:
    frames = [inference_pb2.InferenceFrame(updates=[delta(f"r{n}", "x")] * 200) for n in range(4)]
    names = [update.request_id for frame in frames for update in frame.updates]
    result = list(merged(frames))
    assert [len(frame.updates) for frame in result] == [400, 400]
    assert max(len(frame.updates) for frame in result) <= MAX_MERGED_UPDATES
    assert [update.request_id for frame in result for update in frame.updates] == names
