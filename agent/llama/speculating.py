"""Requests that this device drafts and a cloud node verifies: rounds, ends, fallbacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from agent.engine.output import FinishReason, SampledToken, Update
from agent.engine.request import GenerationRequest, RequestKey
from agent.engine.runner import RunnerError
from agent.engine.sequence import Sequence
from agent.llama.context import LlamaRunner
from agent.llama.drafting import DraftedSequence
from agent.llama.owner import Owner
from agent.llama.tally import Tally
from agent.llama.verifier_link import VerifierLinks, VerifierLostError, VerifierStream
from agent.llama.verify_service import template_sha256, vocabulary_sha256
from agent.llama.verify_wire import drafted_to_wire, sampled_from_wire
from agent.speculative.learning import Plan, Profile, Round, Window
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as wire
from shoal.v1 import verify_pb2 as pb

log = structlog.get_logger()

_DEFAULT_TIMEOUT_S = 10.0
# The gateway's gate writes the level that it ruled; anything else stays.
_MAY_LEAVE = frozenset({wire.PRIVACY_ANY, wire.PRIVACY_LOCAL_PREFERRED})
Deliver = Callable[[list[Update]], None]


@dataclass(frozen=True, slots=True)
class Order:
    """A request that is to be drafted here, as it was prepared and as it came."""

    request: GenerationRequest
    message: wire.GenerateRequest


class Speculator:
    """Runs drafted requests; all methods on the event loop's thread."""

    def __init__(
        self, owner: Owner, runner: LlamaRunner, links: VerifierLinks, deliver: Deliver
    ) -> None:
        self._owner = owner
        self._runner = runner
        self._links = links
        self._deliver = deliver
        self._tasks: dict[RequestKey, asyncio.Task[None]] = {}
        self._vocabulary = vocabulary_sha256(runner.model.vocab)
        self._template = template_sha256(runner.model.chat_template)

    def start(self, order: Order) -> None:
        """Begin; news goes to `deliver`."""
        key = order.request.key
        task = asyncio.create_task(self._run(order))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def cancel(self, key: RequestKey) -> None:
        """Drop a request; unknown ones are ignored."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    def cancel_session(self, session_id: int) -> None:
        """Drop all requests of a session."""
        for key in tuple(self._tasks):
            if key.session_id == session_id:
                self.cancel(key)

    async def _run(self, order: Order) -> None:
        request = order.request
        try:
            async with self._owner.holding(
                lambda core: DraftedSequence(core, self._runner, request)
            ) as drafted:
                await _Run(self, order, drafted).run()
        except ShoalError as error:
            self._fail(request, error)
        except RunnerError:
            self._fail(request, ShoalError(Reason.ENGINE_CRASHED, "the engine failed; try again"))
        except Exception:
            log.exception("speculation_failed", request_id=request.key.request_id)
            text = "the request could not be drafted"
            self._fail(request, ShoalError(Reason.INTERNAL, text))

    def _fail(self, request: GenerationRequest, error: ShoalError) -> None:
        self.tell(Update(request.key, failed=error))

    def opening(self, order: Order) -> pb.VerifyRequest:
        """The first message to the verifier."""
        message = order.message
        opening = pb.OpenSequence(
            request_id=message.request_id,
            model=message.speculation.target,
            prompt=order.request.prompt,
            sampling=message.sampling,
            vocabulary=self._vocabulary,
            chat_template=self._template if message.HasField("chat") else "",
            tenant=message.tenant,
        )
        if message.HasField("top_logprobs"):
            opening.top_logprobs = message.top_logprobs
        return pb.VerifyRequest(open=opening)

    @property
    def owner(self) -> Owner:
        """Where the context may be used."""
        return self._owner

    @property
    def links(self) -> VerifierLinks:
        """The ways to verifiers."""
        return self._links

    @property
    def runner(self) -> LlamaRunner:
        """The draft model's."""
        return self._runner

    def tell(self, update: Update) -> None:
        """Hand news to the request's session."""
        self._deliver([update])


class _Run:
    """One drafted request."""

    def __init__(self, parent: Speculator, order: Order, drafted: DraftedSequence) -> None:
        self._parent = parent
        self._order = order
        self._drafted = drafted
        self._sequence = Sequence(order.request)
        self._sequence.started_s = time.monotonic()
        self._tally = Tally(order.message.speculation.target)
        self._done = False

    async def run(self) -> None:
        """From admission to the end."""
        request = self._order.request
        self._parent.tell(Update(request.key, prompt_tokens=len(request.prompt)))
        try:
            await self._with_verifier()
        except VerifierLostError as lost:
            await self._without_verifier(str(lost))

    async def _with_verifier(self) -> None:
        asked = self._order.message.speculation
        if self._order.message.hints.privacy not in _MAY_LEAVE:
            raise VerifierLostError("the request may not leave the edge")
        timeout_s = asked.timeout_ms / 1e3 or _DEFAULT_TIMEOUT_S
        profile = self._parent.links.profile(asked.verifier, asked.target)
        async with self._parent.links.open(asked.verifier, timeout_s) as stream:
            await stream.send(self._parent.opening(self._order))
            await self._prefill()
            opened = await stream.opened()
            if opened.token_ms > 0 and not profile.passes.known:
                profile.see_alone(opened.token_ms)
            await self._take([opened.first], num_accepted=0)
            limit = min(opened.context_tokens, self._parent.runner.context_tokens)
            await self._rounds(stream, Window(profile), profile, limit)

    async def _prefill(self) -> None:
        while not await self._parent.owner.call(lambda _: self._drafted.prefill()):
            pass

    async def _rounds(
        self, stream: VerifierStream, window: Window, profile: Profile, limit: int
    ) -> None:
        number = 0
        while not self._done:
            number += 1
            plan = window.plan()
            self._tally.because = plan.because
            room = min(limit - len(self._all_tokens) - 1, self._left - 1)
            if plan.num_drafted and room > 0:
                plan = replace(plan, num_drafted=min(plan.num_drafted, room))
                await self._round(stream, window, number, plan)
            else:
                num_alone = min(plan.num_alone or 1, self._left)
                await self._alone(stream, window, number, num_alone)
            if profile.round_trip.known:
                self._tally.round_trip_ms = profile.round_trip.value

    async def _round(self, stream: VerifierStream, window: Window, number: int, plan: Plan) -> None:
        began_s = time.perf_counter()
        drafts, sureness = await self._parent.owner.call(
            lambda _: self._drafted.draft(plan.num_drafted, plan.least_chance, window.chance_of)
        )
        sent_s = time.perf_counter()
        drafted = [drafted_to_wire(draft) for draft in drafts]
        await stream.send(pb.VerifyRequest(draft=pb.DraftRound(round=number, drafted=drafted)))
        verdict = await stream.verdict()
        window.see_round(
            Round(
                len(drafts),
                verdict.num_accepted,
                (sent_s - began_s) * 1e3,
                (time.perf_counter() - sent_s) * 1e3,
                verdict.pass_ms,
                verdict.num_rows,
                sureness,
            )
        )
        self._tally.count_round(len(drafts), verdict.num_accepted)
        await self._take(list(verdict.chosen), verdict.num_accepted)

    async def _alone(
        self, stream: VerifierStream, window: Window, number: int, num_tokens: int
    ) -> None:
        alone = pb.RunAlone(round=number, num_tokens=num_tokens)
        sent_s = time.perf_counter()
        await stream.send(pb.VerifyRequest(alone=alone))
        for place in range(num_tokens):
            verdict = await stream.verdict()
            wall_ms = (time.perf_counter() - sent_s) * 1e3 if place == 0 else None
            window.see_alone(verdict.pass_ms, wall_ms)
            self._tally.target_passes += 1
            await self._take(list(verdict.chosen), 0)
            if self._done:
                return

    async def _without_verifier(self, why: str) -> None:
        message = self._order.message
        log.warning("verifier_given_up", request_id=message.request_id, reason=why)
        self._tally.fallback = why
        wants_cloud = message.speculation.fallback == wire.SPECULATION_FALLBACK_CLOUD
        if wants_cloud and not self._sequence.generated:
            text = f"The verifier of '{message.speculation.target}' cannot be used: {why}."
            raise ShoalError(Reason.UPSTREAM, text, retry_after_ms=1_000)
        await self._prefill()
        while not self._done:
            sampled = await self._parent.owner.call(lambda _: self._drafted.alone())
            self._tally.edge_alone += 1
            self._emit([sampled])

    async def _take(self, chosen: list[pb.Chosen], num_accepted: int) -> None:
        """Tokens of the target stand: tell them, and set the draft right."""
        tokens = [each.token for each in chosen]
        self._tally.cloud += len(tokens) - num_accepted
        self._tally.edge += num_accepted
        self._emit([sampled_from_wire(each) for each in chosen])
        if not self._done:
            drafted = self._drafted
            await self._parent.owner.call(lambda _: drafted.settle(num_accepted, tokens))

    @property
    def _all_tokens(self) -> tuple[int, ...]:
        return (*self._order.request.prompt, *self._sequence.generated)

    @property
    def _left(self) -> int:
        return self._order.request.max_tokens - len(self._sequence.generated)

    def _emit(self, chosen: list[SampledToken]) -> None:
        """Text and tokens to the session, up to an end within them."""
        request, sequence = self._order.request, self._sequence
        deadline = request.deadline_unix_s
        if deadline is not None and time.time() > deadline:
            text = "the request's deadline passed before it was done"
            raise ShoalError(Reason.DEADLINE_EXCEEDED, text)
        said, released = "", list[SampledToken]()
        reason: FinishReason | None = None
        for sampled in chosen:
            if self._parent.runner.is_end(sampled.token) and not request.ignore_eos:
                reason = FinishReason.STOP
                break
            sequence.count_token(sampled, time.monotonic())
            piece = self._parent.runner.piece(sampled.token)
            text, tokens = sequence.detokenizer.feed(sampled, piece)
            said, released = said + text, [*released, *tokens]
            if sequence.detokenizer.stopped:
                reason = FinishReason.STOP
                break
            if self._left <= 0:
                reason = FinishReason.LENGTH
                break
        finished = None
        if reason is not None:
            if not sequence.detokenizer.stopped:
                tail, last = sequence.detokenizer.finish()
                said, released = said + tail, [*released, *last]
            if sequence.detokenizer.stopped:
                reason = FinishReason.STOP
            self._done = True
            sequence.compute_s = self._drafted.compute_s
            finished = sequence.finished(reason, time.monotonic(), sequence.compute_s)
            finished = self._tally.into(finished)
        if said or released or finished:
            self._parent.tell(
                Update(request.key, text=said, tokens=tuple(released), finished=finished)
            )
