"""Tells the hub what was served locally, and keeps it on disk until the hub has it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import structlog

from agent.rpc.identity import write_private
from agent.session.local_journal import LocalJournal, Served
from shoal.errors import ShoalError
from shoal.openai.outcome import Outcome
from shoal.v1 import device_pb2 as pb

log = structlog.get_logger()

JOURNAL_FILE = "local-served.json"
# So much is forgotten at most when the agent is killed.
_EVERY_S = 5.0
_SINCE_PROTOCOL = 2


class LocalReports:
    """An extension of the device's stream (`agent.rpc.extension`)."""

    def __init__(
        self,
        home: Path,
        send: Callable[[pb.DeviceFrame], bool],
        connected: Callable[[], bool],
    ) -> None:
        self._file = home / JOURNAL_FILE
        self._send = send
        self._connected = connected
        self._journal = _load(self._file)
        self._saved_version = self._journal.version
        # 0: no hub is connected.
        self._protocol = 0

    def ended(self, model: str, outcome: Outcome, failure: ShoalError | None) -> None:
        """A local request ended; `failure` None and not finished: its client went away."""
        end = "finished" if outcome.finished else "failed" if failure else "cancelled"
        served = Served(model, end, self._connected(), time.time_ns() // 1_000_000)
        if outcome.finished is not None:
            served = _measured(served, outcome)
        self._journal.note(served)

    def greet(self, hello: pb.Hello) -> None:
        """Nothing to add: reports follow the Welcome."""

    def welcomed(self, protocol: int) -> None:
        """Tell what the last hub did not confirm."""
        self._protocol = protocol
        self._tell()

    def take(self, frame: pb.HubFrame) -> bool:
        """The hub has a report: the next may follow."""
        if frame.WhichOneof("frame") != "local_served_ack":
            return False
        ack = frame.local_served_ack
        self._journal.acknowledged(ack.journal, ack.sequence)
        return True

    async def run(self) -> None:
        """Tell and save from time to time; never returns."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self._tell()
            self.save()

    def save(self) -> None:
        """Write what changed; a full disk is logged, and tried again."""
        version = self._journal.version
        if version == self._saved_version:
            return
        try:
            write_private(self._file, self._journal.to_json().encode())
            self._saved_version = version
        except OSError as error:
            log.warning("local_journal_not_saved", error=str(error))

    def _tell(self) -> None:
        if self._protocol < _SINCE_PROTOCOL:
            return
        report = self._journal.report()
        # On disk before it is told: after a crash the same sequence must mean the same sums.
        self.save()
        if report is not None:
            usages = [pb.LocalUsage(**asdict(usage)) for usage in report.usages]
            message = pb.LocalServed(
                journal=report.journal, sequence=report.sequence, usages=usages
            )
            self._send(pb.DeviceFrame(local_served=message))


def _measured(served: Served, outcome: Outcome) -> Served:
    finished = outcome.finished
    if finished is None:
        return served
    usage, timings = finished.usage, finished.timings
    return Served(
        model=served.model,
        end=served.end,
        connected=served.connected,
        unix_ms=served.unix_ms,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        ttft_ms=timings.ttft_ms,
        prefill_ms=timings.prefill_ms,
        total_ms=timings.total_ms,
        joules=timings.joules if timings.HasField("joules") else None,
    )


def _load(file: Path) -> LocalJournal:
    try:
        return LocalJournal.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("local_journal_unreadable", error=repr(error))
    return LocalJournal(secrets.token_hex(8))
