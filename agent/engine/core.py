"""The step loop's body: requests in, one computation a step, updates out."""

from __future__ import annotations

from collections import Counter

from agent.engine.lending import Lending
from agent.engine.meter import Clocks, ServiceTime, SpeedMeter
from agent.engine.output import FinishReason, Load, SampledToken, Update, joined
from agent.engine.preemption import PROGRESS_TOKENS, Parking
from agent.engine.prefixes import PrefixStore
from agent.engine.request import GenerationRequest, RequestKey
from agent.engine.runner import DecodeItem, Runner
from agent.engine.scheduler import DecodeStep, PrefillChunk, Scheduler
from agent.engine.sequence import Phase, Sequence
from shoal.errors import Reason, ShoalError, invalid


class EngineCore:
    """Owns the sequences; every method is called by the runner's one thread."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        clocks: Clocks,
        prefixes: PrefixStore | None = None,
        prefill_tokens_per_s: float = 0.0,
    ) -> None:
        """`prefill_tokens_per_s`: measured at load; used until work itself tells."""
        self._runner = runner
        self._scheduler = scheduler
        self._clocks = clocks
        self._prefixes = prefixes
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self.lending = Lending(runner, scheduler)
        self._updates: list[Update] = []
        # How many of them are text of running streams and may wait for more.
        self._num_patient = 0
        self._counters: Counter[str] = Counter()
        self._parking = None if prefixes is None else Parking(runner, prefixes, self._counters)
        self._prefill_meter = SpeedMeter()
        self._decode_meter = SpeedMeter()
        self._compute_s = 0.0
        self._service = ServiceTime()
        self._next_deadline_check_s = 0.0

    @property
    def has_work(self) -> bool:
        """True while a request has not ended."""
        return bool(self._scheduler.running) or self._scheduler.num_waiting > 0

    @property
    def can_compute(self) -> bool:
        """True when a step would do something now; False while all wait for prefixes."""
        scheduler = self._scheduler
        return bool(scheduler.running or scheduler.leaving) or any(
            s.phase is not Phase.RESTORING for s in scheduler.waiting
        )

    def next_deadline_s(self) -> float | None:
        """When, on the monotonic clock, a step is due though nothing can be computed."""
        return None if self._prefixes is None else self._prefixes.next_deadline_s()

    def close(self) -> None:
        """Let go of threads and files of the prefix store; takes seconds at most."""
        self._clear_left()
        if self._prefixes is not None:
            self._prefixes.close()

    @property
    def frame_interval_s(self) -> float:
        """For how long the present updates may wait for more; 0: tell them now."""
        if len(self._updates) > self._num_patient or not self._scheduler.running:
            return 0.0
        return self._scheduler.frame_interval_s

    def take_updates(self) -> list[Update]:
        """The updates since the last call, a stream's text joined; the caller owns them."""
        updates, self._updates = self._updates, []
        may_join, self._num_patient = self._num_patient > 0, 0
        return joined(updates) if may_join else updates

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request, or report its refusal as a failed update."""
        try:
            if self._scheduler.find(request.key) is not None:
                raise invalid("request_id", "request_id: a request with this id is running")
            sequence = Sequence(request)
            sequence.busy_before_s = self._compute_s
            retry_ms = self._service.retry_after_ms(self._scheduler.num_waiting, self._runner.slots)
            position = self._scheduler.enqueue(sequence, retry_ms)
        except ShoalError as error:
            self._counters[f"requests_refused_{error.reason.name.lower()}"] += 1
            self._updates.append(Update(request.key, failed=error))
            return
        self._counters["requests_admitted"] += 1
        self._updates.append(
            Update(request.key, prompt_tokens=sequence.num_prompt, queue_position=position)
        )

    def cancel(self, key: RequestKey) -> None:
        """Drop a request in whatever phase; unknown ones are ignored, no update follows."""
        sequence = self._scheduler.find(key)
        if sequence is not None:
            self._counters["requests_cancelled"] += 1
            self._end(sequence)

    def cancel_session(self, session_id: int) -> None:
        """Drop all requests of a session."""
        for key in self._scheduler.keys_of_session(session_id):
            self.cancel(key)

    def hand_over(self) -> PrefixStore | None:
        """Let what ended sequences have in their slots leave them; where it goes."""
        self._clear_left()
        if self._prefixes is not None:
            self._prefixes.settle()
        return self._prefixes

    def fail_all(self, error: ShoalError) -> None:
        """Report the failure for every request and drop it; the runner is not touched."""
        for sequence in (*self._scheduler.running, *self._scheduler.waiting):
            self._updates.append(Update(sequence.request.key, failed=error))
            self._scheduler.remove(sequence)

    def step(self) -> None:
        """Start what has a slot, compute a chunk or a decode; RunnerError loses the context."""
        self.hand_over()
        self._expire()
        for sequence in self._scheduler.take_startable(self._may_start):
            self._start(sequence)
        self._preempt()
        step = self._scheduler.next_step()
        if isinstance(step, PrefillChunk):
            self._prefill(step)
        elif isinstance(step, DecodeStep):
            self._decode(step)

    def load(self) -> Load:
        """How busy the engine is now."""
        now_s = self._clocks.monotonic()
        running, waiting = self._scheduler.running, self._scheduler.waiting
        counters: dict[str, float] = {**self._counters, "compute_seconds": self._compute_s}
        counters["compute_seconds"] += self.lending.compute_s
        if self._prefixes is not None:
            counters.update(self._prefixes.counters())
        return Load(
            running=len(running) + self._scheduler.num_lent,
            waiting=len(waiting),
            waiting_prefill_tokens=sum(s.remaining_prefill for s in (*running, *waiting)),
            slots=self._runner.slots,
            kv_used_tokens=sum(s.num_computed for s in running),
            kv_capacity_tokens=self._runner.slots * self._runner.context_tokens,
            prefill_tokens_per_s=self._prefill_meter.rate(now_s),
            decode_tokens_per_s=self._decode_meter.rate(now_s),
            host_kv_bytes=int(counters.get("kv_host_bytes", 0)),
            disk_kv_bytes=int(counters.get("kv_disk_bytes", 0)),
            counters=counters,
            sharing=None if self._prefixes is None else self._prefixes.sharing(),
        )

    def _may_start(self, sequence: Sequence) -> bool:
        if self._prefixes is None:
            return True
        lately = self._prefill_meter.rate(self._clocks.monotonic())
        return self._prefixes.prepare(sequence, lately or self._prefill_tokens_per_s)

    def _start(self, sequence: Sequence) -> None:
        now_s = self._clocks.monotonic()
        if self._parking is not None and sequence.sampler is not None:
            if not self._parking.resume(sequence, now_s):
                self._fail(sequence, Reason.ENGINE_CRASHED, "the paused request's state is lost")
                return
        else:
            sequence.started_s = now_s
            self._runner.start(
                sequence.held_slot, sequence.request.sampling, sequence.request.prompt
            )
            if self._prefixes is not None:
                self._prefixes.restore(sequence)
                self._counters["prompt_tokens_cached"] += sequence.num_computed
        sequence.parkable_from = sequence.num_computed + PROGRESS_TOKENS

    def _preempt(self) -> None:
        """At most one a step: parking takes milliseconds, for which running streams wait."""
        if self._parking is None:
            return
        found = self._scheduler.find_preemption(self._may_start)
        if found is not None and self._parking.park(found.victim, self._clocks.monotonic()):
            self._scheduler.displace(found)
            self._start(found.urgent)

    def _prefill(self, chunk: PrefillChunk) -> None:
        sequence = chunk.sequence
        began_s = self._clocks.monotonic()
        sampled = self._runner.prefill(
            sequence.held_slot,
            sequence.request.prompt[chunk.start : chunk.end],
            chunk.start,
            want_token=chunk.is_last,
        )
        now_s = self._clocks.monotonic()
        num_tokens = chunk.end - chunk.start
        sequence.num_computed = chunk.end
        self._compute_s += now_s - began_s
        sequence.compute_s += now_s - began_s
        self._prefill_meter.add(num_tokens, began_s, now_s)
        self._counters["prompt_tokens_computed"] += num_tokens
        if self._prefixes is not None:
            self._prefixes.prefilled(sequence)
        if sampled is not None:
            sequence.phase = Phase.DECODE
            self._take(sequence, sampled, now_s)

    def _decode(self, step: DecodeStep) -> None:
        began_s = self._clocks.monotonic()
        sampled = self._runner.decode(
            [DecodeItem(s.held_slot, s.num_computed, s.last_token) for s in step.sequences]
        )
        now_s = self._clocks.monotonic()
        self._decode_meter.add(len(sampled), began_s, now_s)
        self._counters["decode_steps"] += 1
        self._compute_s += now_s - began_s
        share_s = (now_s - began_s) / len(sampled)
        for sequence, token in zip(step.sequences, sampled, strict=True):
            sequence.num_computed += 1
            sequence.decode_steps += 1
            sequence.compute_s += share_s
            sequence.batch_sum += len(sampled)
            self._take(sequence, token, now_s)

    def _take(self, sequence: Sequence, sampled: SampledToken, now_s: float) -> None:
        request = sequence.request
        if self._runner.is_end(sampled.token) and not request.ignore_eos:
            self._finish(sequence, FinishReason.STOP, *sequence.detokenizer.finish())
            return
        sequence.count_token(sampled, now_s)
        self._counters["completion_tokens"] += 1
        text, tokens = sequence.detokenizer.feed(sampled, self._runner.piece(sampled.token))
        if sequence.detokenizer.stopped:
            self._finish(sequence, FinishReason.STOP, text, tokens)
        elif len(sequence.generated) >= request.max_tokens:
            tail, last_tokens = sequence.detokenizer.finish()
            self._finish(sequence, FinishReason.LENGTH, text + tail, tokens + last_tokens)
        elif text or tokens:
            self._updates.append(Update(request.key, text=text, tokens=tokens))
            self._num_patient += len(sequence.generated) > 1

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        text: str,
        tokens: tuple[SampledToken, ...],
    ) -> None:
        if sequence.detokenizer.stopped:
            reason = FinishReason.STOP
        now_s = self._clocks.monotonic()
        finished = sequence.finished(reason, now_s, self._compute_s)
        key = sequence.request.key
        self._updates.append(Update(key, text=text, tokens=tokens, finished=finished))
        self._counters["requests_finished"] += 1
        if sequence.started_s is not None:
            self._service.add(now_s - sequence.started_s)
        self._scheduler.retire(sequence)

    def _clear_left(self) -> None:
        for sequence in self._scheduler.leaving:
            self._empty(sequence)
            self._scheduler.free(sequence)

    def _end(self, sequence: Sequence) -> None:
        self._empty(sequence)
        self._scheduler.remove(sequence)

    def _empty(self, sequence: Sequence) -> None:
        if self._prefixes is not None:
            self._prefixes.end(sequence)
        if sequence.sampler is not None:
            sequence.sampler.close()
        if sequence.slot is not None:
            self._runner.clear(sequence.slot)

    def _expire(self) -> None:
        now_unix_s = self._clocks.unix()
        if now_unix_s < self._next_deadline_check_s:
            return
        self._next_deadline_check_s = now_unix_s + 0.1
        for sequence in (*self._scheduler.running, *self._scheduler.waiting):
            deadline = sequence.request.deadline_unix_s
            if deadline is not None and now_unix_s > deadline:
                self._counters["requests_expired"] += 1
                text = "the request's deadline passed before it was done"
                self._fail(sequence, Reason.DEADLINE_EXCEEDED, text)

    def _fail(self, sequence: Sequence, reason: Reason, text: str) -> None:
        self._updates.append(Update(sequence.request.key, failed=ShoalError(reason, text)))
        self._end(sequence)
