"""One request through a cascade: the edge first, its answer held or shown, then maybe another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from orchestrator.dispatch.backend import Account, has_output
from orchestrator.dispatch.cascade.judging import Judge, Why
from orchestrator.dispatch.cascade.legs import Leg
from orchestrator.dispatch.cascade.run import CascadeRun, Starts
from shoal.crash import place_of
from shoal.errors import Reason, ShoalError
from shoal.http.generation import Mailbox, failed_update
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

Updates = Sequence[pb.SequenceUpdate]


class CascadeGeneration:
    """See `Generation`; what it decided is in `account.cascade`."""

    def __init__(self, run: CascadeRun, judge: Judge, starts: Starts) -> None:
        self.run = run
        self.judge = judge
        self.why: Why | None = None
        self.escalated = False
        self.edge: Leg | None = None
        self.held_ms = 0.0
        self._starts = starts
        # In order of their starts, and who of them answers the client.
        self._legs: list[Leg] = []
        self._answering: Leg | None = None
        self._mailbox = Mailbox()
        self._held: list[pb.SequenceUpdate] = []
        self._shown = False
        self._task = asyncio.create_task(self._run(), name=f"cascade {run.request.request_id}")

    @property
    def tier(self) -> str:
        """Where the answer comes from, as far as that is known."""
        return self._answering.generation.tier if self._answering else "edge"

    @property
    def account(self) -> Account:
        """See `Generation.account`; of all legs, with the cascade's own decision."""
        account = Account()
        for leg in self._legs:
            leg.count_into(account)
        account.cascade = self.told()
        return account

    def told(self) -> dict[str, object]:
        """The decision with the values that made it, for answers and records."""
        return {
            "policy": self.run.policy.name,
            "decision": "escalated" if self.escalated else "accepted",
            "reason": self.why.value if self.why else "",
            **self.judge.told(),
            **self.run.told(),
            "held_ms": round(self.held_ms, 1),
            "legs": [leg.told() for leg in self._legs],
        }

    async def take(self) -> Updates:
        """See `Generation.take`."""
        return await self._mailbox.take()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._task.cancel()
        for leg in self._legs:
            leg.stop()

    async def _run(self) -> None:
        try:
            await self._answer()
        except ShoalError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a reader must not wait for ever; logged
            _log.error("cascade_crashed", cause=place_of(error))
            self._fail(ShoalError(Reason.INTERNAL, "The gateway failed on this request."))

    def _fail(self, error: ShoalError) -> None:
        self._mailbox.put(failed_update(self.run.request.request_id, error))

    async def _answer(self) -> None:
        if self._starts.edge is None:
            self.why = Why.NO_EDGE
            await self._escalate()
            return
        began_s = time.monotonic()
        self.edge = leg = self._start(self._starts.edge)
        self._shown = self.run.shown_at_once or self.run.delivery == "restart"
        self.why = await self._judged(leg)
        self.held_ms = (time.monotonic() - began_s) * 1000
        if self.why in (Why.CONFIDENT, Why.NOT_MEASURED, Why.NO_TARGET):
            self._release()
            await self._relay(leg)
        elif self._starts.target is not None and not leg.fault_of_the_request:
            await self._escalate()
        else:
            self._release()  # the edge failed, and its failure is the last word

    async def _judged(self, leg: Leg) -> Why:
        """Follow the edge until it is plain whether its answer stands."""
        hold_s = self.run.hold_s
        until_s = None if hold_s is None else asyncio.get_running_loop().time() + hold_s
        try:
            async with asyncio.timeout_at(until_s):
                while True:
                    updates = await leg.take()
                    verdict = self._weigh(leg, updates)
                    self._pass_on(updates)
                    if verdict is not None:
                        return verdict
        except TimeoutError:
            if self.run.shown_at_once:
                return Why.NO_TARGET
            return self.judge.decide_in_progress(leg.num_tokens)

    def _weigh(self, leg: Leg, updates: Updates) -> Why | None:
        """The verdict, if these updates bring it."""
        if leg.failed is not None:
            return Why.EDGE_FAILED
        if self.run.shown_at_once:
            # Nobody else could answer: it stands from its first word on.
            for figures in leg.figures(updates):
                self.judge.add(figures)
            return Why.NO_TARGET if leg.finished is not None else None
        for figures in leg.figures(updates):
            self.judge.add(figures)
            if self.judge.hopeless():
                return Why.HOPELESS
        held_enough = self.run.hold_s is not None and leg.num_tokens >= self.run.policy.hold_tokens
        if leg.finished is not None or held_enough:
            return self.judge.decide(leg.num_tokens)
        return None

    def _pass_on(self, updates: Updates) -> None:
        """To the client when the text is shown at once; else keep. Ends are always kept."""
        for update in updates:
            ends = update.HasField("finished") or update.HasField("failed")
            if self._shown and not ends and not self._held:
                self._mailbox.put(update)
            else:
                self._held.append(update)

    def _release(self) -> None:
        for update in self._held:
            self._mailbox.put(update)
        self._held.clear()

    async def _relay(self, leg: Leg) -> None:
        while not leg.ended:
            for update in await leg.take():
                self._mailbox.put(update)

    async def _escalate(self) -> None:
        """Somebody else answers; should nobody, what the edge had, or has in a second try."""
        edge = self.edge
        # One that is only slow keeps its place until somebody else has begun to answer.
        if edge is not None and self.why is not Why.SLOW:
            edge.stop()
        if self._starts.target is None:
            raise ShoalError(
                Reason.NO_DEVICE, "No device is ready for the cascade.", retry_after_ms=1_000
            )
        self.escalated = True
        if edge is None or edge.failed is not None:
            await self._last_resort(self._starts.target)
            return
        leg = self._target(self._starts.target, patient=False)
        updates = await self._until_it_may_be_shown(leg)
        if updates:
            edge.stop()
            edge.given_up = edge.given_up or str(self.why)
            self._begin_anew(updates)
            await self._relay(leg)
            return
        _log.info("cascade_target_failed", code=leg.failed_code)
        self.escalated = False
        self.why = Why.ESCALATION_FAILED
        if leg.failed is None and not leg.stopped:
            leg.given_up = "no_answer"
        if edge.stopped:
            await self._edge_again()
            return
        self._answering = edge
        self._release()
        await self._relay(edge)

    async def _last_resort(self, start: Callable[[bool], Leg]) -> None:
        """The target when the edge has no answer: its failure is the client's."""
        leg = self._target(start, patient=True)
        updates = await self._first_output(leg)
        if leg.failed is None or has_output(updates):
            self._begin_anew(updates)
            await self._relay(leg)
            return
        _log.info("cascade_target_failed", code=leg.failed_code)
        for update in updates:
            self._mailbox.put(update)

    async def _until_it_may_be_shown(self, leg: Leg) -> Updates:
        """What the target says up to its first word, or whole; nothing if it fails till then."""
        updates: list[pb.SequenceUpdate] = []
        try:
            async with asyncio.timeout(self.run.policy.escalate_s):
                while not (leg.ended or leg.text.strip()):
                    updates.extend(await leg.take())
        except TimeoutError:
            leg.stop()
            return ()
        while self.run.in_one_piece and not leg.ended:
            updates.extend(await leg.take())
        return () if leg.failed is not None or not leg.text.strip() else updates

    async def _edge_again(self) -> None:
        if self._starts.again is None:
            raise ShoalError(Reason.INTERNAL, "The cascade cannot start its edge again.")
        leg = self._start(self._starts.again)
        self._begin_anew(await self._first_output(leg))
        await self._relay(leg)

    async def _first_output(self, leg: Leg) -> list[pb.SequenceUpdate]:
        """All until the first output or the failure."""
        updates: list[pb.SequenceUpdate] = []
        while not (leg.ended or has_output(updates)):
            updates.extend(await leg.take())
        return updates

    def _begin_anew(self, updates: Updates) -> None:
        """Another leg's text: in the place of what was held, or after saying so."""
        self._held.clear()
        edge = self.edge
        if self._shown and edge is not None and edge.num_tokens:
            restarted = pb.Restarted(
                reason=self.why.value if self.why else "", discarded_tokens=edge.num_tokens
            )
            self._mailbox.put(
                pb.SequenceUpdate(request_id=self.run.request.request_id, restarted=restarted)
            )
        for update in updates:
            if update.HasField("placed"):
                update.placed.reason = self.judge.handed_over(self.why)
                update.placed.attempt = len(self._legs)
            self._mailbox.put(update)

    def _target(self, start: Callable[[bool], Leg], *, patient: bool) -> Leg:
        return self._start(lambda: start(patient))

    def _start(self, start: Callable[[], Leg]) -> Leg:
        leg = self._answering = start()
        self._legs.append(leg)
        return leg
