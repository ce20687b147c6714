"""When another model's answer takes the place of the edge's, and when the edge's stands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from orchestrator.dispatch.backend import Account, Try
from orchestrator.dispatch.cascade.generation import CascadeGeneration
from orchestrator.dispatch.cascade.judging import Bar, Judge
from orchestrator.dispatch.cascade.legs import Leg
from orchestrator.dispatch.cascade.policy import CascadePolicy, Target
from orchestrator.dispatch.cascade.run import CascadeRun, Starts
from shoal.http.generation import Mailbox
from shoal.v1 import inference_pb2 as pb

FAILED = pb.SequenceUpdate(
    failed=pb.Failed(reason=pb.FAILURE_REASON_ENGINE_CRASHED, message="it broke")
)
ENDED = pb.SequenceUpdate(finished=pb.Finished(usage=pb.Usage(prompt_tokens=3)))


def word(text: str) -> pb.SequenceUpdate:
    return pb.SequenceUpdate(delta=pb.Delta(text=text, tokens=[1]))


def guess(text: str) -> pb.SequenceUpdate:
    update = word(text)
    update.delta.confidence.CopyFrom(pb.Confidence(logprob=[-3.0], entropy=[4.0], margin=[0.05]))
    return update


class Said:
    """A generation that says what a test tells it to."""

    def __init__(self, tier: str, *updates: pb.SequenceUpdate) -> None:
        self.tier, self.account = tier, Account()
        self.cancelled = False
        # Set while somebody waits for more.
        self.awaited = asyncio.Event()
        self._unread = 0
        self._mailbox = Mailbox()
        self.say(*updates)

    def say(self, *updates: pb.SequenceUpdate) -> None:
        self._unread += len(updates)
        for update in updates:
            self._mailbox.put(update)

    async def take(self) -> list[pb.SequenceUpdate]:
        if not self._unread:
            self.awaited.set()
        updates = await self._mailbox.take()
        self._unread = 0
        return updates

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Cascade:
    """One request whose edge said `edge`, and whose target says `target`."""

    edge: Said
    target: Said
    delivery: str = "hold"
    streams: bool = False
    escalate_s: float = 60.0
    patience: list[bool] = field(default_factory=list)

    def start(self) -> CascadeGeneration:
        def target(patient: bool) -> Leg:
            self.patience.append(patient)
            return Leg(self.target, "big", "r.up")

        run = CascadeRun(
            CascadePolicy(escalate_s=self.escalate_s),
            pb.GenerateRequest(request_id="r"),
            "small",
            Target("big", "cloud"),
            self.delivery,
            60.0 if self.streams and self.delivery == "hold" else None,
        )
        starts = Starts(lambda: Leg(self.edge, "small", "r.edge"), target)
        return CascadeGeneration(run, Judge(Bar(0.5), None, stops_early=False), starts)


async def rest(generation: CascadeGeneration) -> list[pb.SequenceUpdate]:
    """All updates up to the last."""
    found: list[pb.SequenceUpdate] = []
    async with asyncio.timeout(60):
        while not found or not (found[-1].HasField("finished") or found[-1].HasField("failed")):
            found.extend(await generation.take())
    return found


def text(updates: list[pb.SequenceUpdate]) -> str:
    return "".join(update.delta.text for update in updates)


def unsure_edge() -> Said:
    return Said("edge", guess("A"), guess(" guess"), ENDED)


@pytest.mark.parametrize(
    "says",
    [(FAILED,), (word("From"), FAILED), (ENDED,), (word(""), word(" \n"), ENDED)],
    ids=["fails", "breaks off", "says nothing", "says blanks"],
)
@pytest.mark.parametrize(
    ("delivery", "streams"), [("hold", False), ("hold", True), ("restart", True)]
)
async def test_edge_answers_where_nothing_of_the_other_was_shown(
    says: tuple[pb.SequenceUpdate, ...], delivery: str, streams: bool
) -> None:
    cascade = Cascade(unsure_edge(), Said("cloud", *says), delivery, streams)
    generation = cascade.start()
    updates = await rest(generation)
    assert text(updates) == "A guess"
    assert updates[-1].HasField("finished")
    assert not any(update.HasField("restarted") for update in updates)
    told = generation.told()
    assert (told["decision"], told["reason"]) == ("accepted", "escalation_failed")
    assert generation.tier == "edge"


async def test_answer_in_one_piece_holds_the_other_until_it_is_whole() -> None:
    cascade = Cascade(unsure_edge(), Said("cloud", word("From")))
    generation = cascade.start()
    async with asyncio.timeout(60):
        await cascade.target.awaited.wait()
    cascade.target.say(FAILED)
    assert text(await rest(generation)) == "A guess"


async def test_stream_that_has_shown_the_other_ends_with_its_failure() -> None:
    cascade = Cascade(unsure_edge(), Said("cloud", word("From")), streams=True)
    generation = cascade.start()
    assert text(list(await generation.take())) == "From"
    cascade.target.say(FAILED)
    assert (await rest(generation))[-1].failed.message == "it broke"
    assert generation.told()["decision"] == "escalated"


async def test_other_that_does_not_begin_in_time_is_not_waited_for() -> None:
    cascade = Cascade(unsure_edge(), Said("cloud"), escalate_s=0.05)
    cascade.target.account.tries.append(Try("above", 1))
    generation = cascade.start()
    assert text(await rest(generation)) == "A guess"
    assert cascade.target.cancelled
    assert generation.account.tries[-1].failed == "cancelled"
    assert generation.told()["reason"] == "escalation_failed"


@pytest.mark.parametrize("edge_fails", [False, True])
async def test_the_other_is_waited_for_only_when_the_edge_has_no_answer(edge_fails: bool) -> None:
    edge = Said("edge", FAILED) if edge_fails else unsure_edge()
    cascade = Cascade(edge, Said("cloud"), escalate_s=60.0 if not edge_fails else 0.01)
    generation = cascade.start()
    async with asyncio.timeout(60):
        await cascade.target.awaited.wait()
    await asyncio.sleep(0.05 if edge_fails else 0)  # longer than the bound that does not hold here
    cascade.target.say(word("From"), ENDED)
    assert text(await rest(generation)) == "From"
    assert cascade.patience == [edge_fails]
