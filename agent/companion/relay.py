"""Requests of one companion: who waits, who is with the server, what each was told."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from agent.companion.busy import BusyClock, Used
from agent.companion.settings import CompanionSettings
from agent.companion.upstream import Piece, Upstream
from shoal.errors import Reason, ShoalError, invalid
from shoal.v1 import inference_pb2 as pb

log = structlog.get_logger()

# A level that this version does not know stays on this machine.
_MAY_LEAVE = frozenset({pb.PRIVACY_UNSPECIFIED, pb.PRIVACY_ANY, pb.PRIVACY_LOCAL_PREFERRED})
# Bytes of a token of English text: for prompts that nobody counted.
_BYTES_PER_TOKEN = 4

Push = Callable[[pb.SequenceUpdate], None]
Key = tuple[int, str]


@dataclass(slots=True)
class _Job:
    """One request; times are monotonic seconds, None: not yet."""

    key: Key
    request: pb.GenerateRequest
    push: Push
    arrived_s: float
    prompt_tokens: int
    task: asyncio.Task[None] | None = None
    began_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    num_deltas: int = 0
    finish_reason: str = ""
    usage: pb.Usage | None = None
    tokens: int = field(default=0)

    def take(self, piece: Piece, now_s: float) -> None:
        """Keep what the end is told from."""
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.usage = piece.usage or self.usage
        if piece.delta is not None:
            self.first_s = now_s if self.first_s is None else self.first_s
            self.last_s = now_s
            self.num_deltas += 1


class Relay:
    """Gives the server as many requests as it has slots; the most urgent waits shortest."""

    def __init__(self, settings: CompanionSettings, upstream: Upstream) -> None:
        self._settings = settings
        self._upstream = upstream
        self._jobs: dict[Key, _Job] = {}
        self._waiting: list[tuple[int, int, Key]] = []
        self._order = itertools.count()
        self._busy = BusyClock(time.monotonic())
        self._counters: Counter[str] = Counter()
        self.num_failed_in_a_row = 0

    def submit(self, key: Key, request: pb.GenerateRequest, push: Push) -> None:
        """Take a request, or push its refusal."""
        try:
            self._check(key, request)
        except ShoalError as error:
            self._counters[f"requests_refused_{error.reason.name.lower()}"] += 1
            push(pb.SequenceUpdate(request_id=key[1], failed=error.to_wire()))
            return
        self._counters["requests_admitted"] += 1
        job = _Job(key, request, push, time.monotonic(), _prompt_tokens(request))
        free = self._busy.num_running < self._settings.slots
        position = 0 if free else self._num_waiting()
        self._jobs[key] = job
        heapq.heappush(self._waiting, (-request.hints.priority, next(self._order), key))
        admitted = pb.Admitted(prompt_tokens=job.prompt_tokens, queue_position=position)
        push(pb.SequenceUpdate(request_id=key[1], admitted=admitted))
        self._start_next()

    def cancel(self, key: Key) -> None:
        """Drop a request in whatever phase; the server's work on it ends, no update follows."""
        job = self._jobs.pop(key, None)
        if job is None:
            return
        self._counters["requests_cancelled"] += 1
        if job.task is not None:
            job.task.cancel()

    def cancel_session(self, session_id: int) -> None:
        """Drop all requests of one session."""
        for key in [key for key in self._jobs if key[0] == session_id]:
            self.cancel(key)

    def load(self) -> pb.EngineLoad:
        """How busy the companion is."""
        waiting = [job for job in self._jobs.values() if job.task is None]
        counters = dict(self._counters)
        return pb.EngineLoad(
            model=self._settings.name,
            running=self._busy.num_running,
            waiting=len(waiting),
            waiting_prefill_tokens=sum(job.prompt_tokens for job in waiting),
            slots=self._settings.slots,
            counters={**counters, "compute_seconds": self._busy.busy_s(time.monotonic())},
        )

    def _check(self, key: Key, request: pb.GenerateRequest) -> None:
        settings = self._settings
        if not request.request_id or key in self._jobs:
            raise invalid("request_id", "request_id: is empty or in use")
        if request.model and request.model != settings.name:
            raise ShoalError(
                Reason.MODEL_NOT_FOUND,
                f"model: this companion serves {settings.name}, not {request.model}",
                param="model",
            )
        if settings.is_remote and request.hints.privacy not in _MAY_LEAVE:
            raise ShoalError(
                Reason.PERMISSION_DENIED,
                "privacy: this companion's server is another machine, and the request is local",
                param="privacy",
            )
        if request.chat.tools_json:
            raise invalid("tools", "tools: companions serve no tools yet; leave them out")
        if self._num_waiting() >= settings.max_waiting:
            raise ShoalError(
                Reason.OVERLOADED, "the companion's queue is full", retry_after_ms=1000
            )

    def _num_waiting(self) -> int:
        return sum(job.task is None for job in self._jobs.values())

    def _start_next(self) -> None:
        while self._waiting and self._busy.num_running < self._settings.slots:
            job = self._jobs.get(heapq.heappop(self._waiting)[2])
            if job is None or job.task is not None:
                continue  # cancelled while it waited
            job.began_s = time.monotonic()
            self._busy.begin(_name(job.key), job.began_s)
            job.task = asyncio.create_task(self._run(job))

    async def _run(self, job: _Job) -> None:
        failure: ShoalError | None = None
        try:
            await self._answer(job)
        except ShoalError as error:
            failure = error
        finally:
            used = self._busy.end(_name(job.key), time.monotonic())
            self._start_next()
        if self._jobs.pop(job.key, None) is not None:  # else cancelled, and nobody listens
            self._tell_end(job, failure, used)

    async def _answer(self, job: _Job) -> None:
        """Pass the answer on as it comes; ShoalError when it does not come to an end."""
        deadline_ms = job.request.deadline_unix_ms
        left_s = deadline_ms / 1e3 - time.time() if deadline_ms else None
        try:
            async with asyncio.timeout(left_s):
                async with aclosing(self._upstream.stream(job.request)) as pieces:
                    async for piece in pieces:
                        job.take(piece, time.monotonic())
                        if piece.delta is not None:
                            update = pb.SequenceUpdate(request_id=job.key[1], delta=piece.delta)
                            job.push(update)
        except TimeoutError as error:
            raise ShoalError(
                Reason.DEADLINE_EXCEEDED, "the request's deadline passed before its end"
            ) from error
        if not job.finish_reason:
            raise ShoalError(Reason.ENGINE_CRASHED, "the companion server's answer has no end")

    def _tell_end(self, job: _Job, failure: ShoalError | None, used: Used) -> None:
        update = pb.SequenceUpdate(request_id=job.key[1])
        if failure is not None:
            self._note_failure(failure.reason)
            self._counters[f"requests_failed_{failure.reason.name.lower()}"] += 1
            log.info("request_failed", request_id=job.key[1], reason=failure.reason)
            update.failed.CopyFrom(failure.to_wire())
        else:
            self.num_failed_in_a_row = 0
            update.finished.CopyFrom(_finished(job, used))
            usage = update.finished.usage
            self._counters["requests_finished"] += 1
            self._counters["completion_tokens"] += usage.completion_tokens
            log.info(
                "request_finished",
                request_id=job.key[1],
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                ttft_ms=round(update.finished.timings.ttft_ms, 1),
                tpot_ms=round(update.finished.timings.tpot_ms, 2),
            )
        job.push(update)

    def _note_failure(self, reason: Reason) -> None:
        """Failures of the server count, those of a request do not."""
        if reason is Reason.ENGINE_CRASHED:
            self.num_failed_in_a_row += 1


def _finished(job: _Job, used: Used) -> pb.Finished:
    ended_s = time.monotonic()
    usage = job.usage or pb.Usage(
        # Nobody counted: one token a delta, as servers stream them.
        prompt_tokens=job.prompt_tokens,
        completion_tokens=job.num_deltas,
    )
    first_s = ended_s if job.first_s is None else job.first_s
    steps = usage.completion_tokens - 1
    return pb.Finished(
        reason=(
            pb.Finished.REASON_LENGTH if job.finish_reason == "length" else pb.Finished.REASON_STOP
        ),
        usage=usage,
        timings=pb.Timings(
            queue_ms=1e3 * (job.began_s - job.arrived_s),
            prefill_ms=1e3 * (first_s - job.began_s),
            ttft_ms=1e3 * (first_s - job.arrived_s),
            tpot_ms=1e3 * (job.last_s - first_s) / steps if steps > 0 and job.last_s else 0.0,
            total_ms=1e3 * (ended_s - job.arrived_s),
            mean_batch=used.mean_batch,
            compute_ms=1e3 * used.own_s,
            busy_ms=1e3 * used.busy_s,
        ),
    )


def _prompt_tokens(request: pb.GenerateRequest) -> int:
    """About how many; exact for token ids. What is charged is what the server counts."""
    kind = request.WhichOneof("prompt")
    if kind == "tokens":
        return len(request.tokens.ids)
    texts = [m.content for m in request.chat.messages] if kind == "chat" else [request.text]
    return max(1, sum(len(text.encode()) for text in texts) // _BYTES_PER_TOKEN)


def _name(key: Key) -> str:
    return f"{key[0]}:{key[1]}"
