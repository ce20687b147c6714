from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from cloud.relay import may_call
from orchestrator.dispatch.cloud import CloudBackend
from orchestrator.dispatch.detector import NoScreen
from orchestrator.dispatch.endpoint import CloudConfig
from orchestrator.dispatch.outbound import OutboundGate
from orchestrator.dispatch.prices import Price
from orchestrator.dispatch.speculative import DraftedGeneration, drafting_request
from orchestrator.dispatch.speculative_models import DraftedModel, drafted_models
from orchestrator.dispatch.spending import Spending
from orchestrator.identity.tenants import TenantPolicy
from orchestrator.identity.tenants_redis import Reservation, day_of, month_of
from orchestrator.request import Privacy
from shoal.v1 import inference_pb2 as pb

PRICE = Price(Decimal(1), Decimal(2))
MODEL = DraftedModel("big", "small", "10.0.0.5:8600", "cloud", 2.0, PRICE)


class Policies:
    def __init__(self, level: Privacy | None) -> None:
        self.level = level

    async def policy(self, tenant: str) -> TenantPolicy | None:
        return TenantPolicy(self.level) if self.level else None


class Edge:
    """Keeps what it was asked to start."""

    def __init__(self) -> None:
        self.started: list[pb.GenerateRequest] = []
        self.cancelled = 0
        self.updates = [[pb.SequenceUpdate(request_id="r", finished=pb.Finished())]]

    def start(self, request: pb.GenerateRequest) -> Any:
        self.started.append(request)
        return self

    async def take(self) -> list[pb.SequenceUpdate]:
        return self.updates.pop(0)

    def cancel(self) -> None:
        self.cancelled += 1


class Ledger:
    """Keeps what is set aside and what is settled: tokens and nanos."""

    def __init__(self) -> None:
        self.reserved: list[tuple[int, int | None]] = []
        self.settled: list[tuple[int, int | None]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.has_settled = asyncio.Event()

    async def reserve(self, tenant: str, tokens: int, nanos: int | None) -> Reservation:
        await self.may_answer.wait()
        self.reserved.append((tokens, nanos))
        return Reservation(tenant, day_of(0.0), month_of(0.0), tokens, nanos)

    async def settle(self, reserved: Reservation, tokens: int, nanos: int | None) -> None:
        self.settled.append((tokens, nanos))
        self.has_settled.set()


def gate(level: Privacy | None) -> OutboundGate:
    return OutboundGate(Policies(level), NoScreen())


def drafted(
    edge: Edge, level: Privacy | None, ledger: Ledger, privacy: int = pb.PRIVACY_ANY
) -> Any:
    cloud = CloudBackend(CloudConfig(), gate(level), Spending(ledger, CloudConfig()))
    return DraftedGeneration(edge, cloud, ask(privacy), MODEL)  # type: ignore[arg-type]


def ask(privacy: int = pb.PRIVACY_ANY) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="r", tenant="t", model="big", hints=pb.RoutingHints(privacy=privacy)
    )  # type: ignore[arg-type]


async def test_a_pass_names_the_verifier_and_the_drafting_model() -> None:
    request = ask()
    sent = drafting_request(await gate(Privacy.ANY).admit(request), MODEL)
    assert (sent.model, sent.speculation.target) == ("small", "big")
    assert sent.speculation.verifier == "10.0.0.5:8600"
    assert sent.speculation.fallback == pb.SPECULATION_FALLBACK_CLOUD
    assert sent.speculation.timeout_ms == 2_000
    assert not request.HasField("speculation")


@pytest.mark.parametrize(
    ("level", "privacy"),
    [
        (Privacy.ANY, pb.PRIVACY_LOCAL_ONLY),
        (Privacy.LOCAL_ONLY, pb.PRIVACY_ANY),
        (None, pb.PRIVACY_ANY),
    ],
)
async def test_a_local_request_is_never_sent_to_be_drafted(
    level: Privacy | None, privacy: int
) -> None:
    edge, ledger = Edge(), Ledger()
    (update,) = await drafted(edge, level, ledger, privacy).take()
    assert update.HasField("failed")
    assert (edge.started, ledger.reserved) == ([], [])


async def test_one_that_may_leave_goes_to_the_devices() -> None:
    edge = Edge()
    await drafted(edge, Privacy.ANY, Ledger()).take()
    assert [each.model for each in edge.started] == ["small"]


def came(*, tokens: int = 0, **fields: Any) -> list[pb.SequenceUpdate]:
    delta = {"delta": pb.Delta(text="x", tokens=[1] * tokens)} if tokens else {}
    return [pb.SequenceUpdate(request_id="r", **delta, **fields)]


async def test_what_the_node_gave_is_set_aside_before_and_counted_after() -> None:
    finished = pb.Finished(usage=pb.Usage(prompt_tokens=11, completion_tokens=5))
    finished.speculated.tokens_by_tier.update({"edge": 3, "cloud": 2})
    edge, ledger = Edge(), Ledger()
    edge.updates = [came(admitted=pb.Admitted(prompt_tokens=11)), came(tokens=5, finished=finished)]
    generation = drafted(edge, Privacy.ANY, ledger)
    await generation.take()
    assert ledger.reserved[0][0] > 4_096
    assert ledger.settled == []
    await generation.take()
    assert ledger.settled == [(13, 15_000)]
    generation.cancel()
    assert ledger.settled == [(13, 15_000)]
    assert generation.account.uses["cloud"].cost_nanos == 15_000


async def test_answer_without_the_node_costs_nothing() -> None:
    finished = pb.Finished(usage=pb.Usage(prompt_tokens=11, completion_tokens=5))
    finished.speculated.tokens_by_tier.update({"edge": 5, "cloud": 0})
    for end in (came(finished=finished), came(failed=pb.Failed(reason=pb.FAILURE_REASON_UPSTREAM))):
        edge, ledger = Edge(), Ledger()
        edge.updates = [came(admitted=pb.Admitted(prompt_tokens=11)), end]
        generation = drafted(edge, Privacy.ANY, ledger)
        await generation.take()
        await generation.take()
        assert ledger.settled == [(0, 0)]
        assert generation.account.uses == {}


async def test_answer_that_is_cut_short_counts_as_the_nodes() -> None:
    edge, ledger = Edge(), Ledger()
    edge.updates = [[*came(admitted=pb.Admitted(prompt_tokens=11)), *came(tokens=4)]]
    generation = drafted(edge, Privacy.ANY, ledger)
    await generation.take()
    generation.cancel()
    generation.cancel()
    async with asyncio.timeout(10):
        await ledger.has_settled.wait()
    assert ledger.settled == [(15, 19_000)]
    assert edge.cancelled == 2


async def test_client_that_leaves_while_the_budget_is_asked_has_nothing_set_aside() -> None:
    edge, ledger = Edge(), Ledger()
    ledger.may_answer.clear()
    generation = drafted(edge, Privacy.ANY, ledger)
    reader = asyncio.create_task(generation.take())
    await asyncio.sleep(0.01)
    reader.cancel()
    generation.cancel()
    ledger.may_answer.set()
    async with asyncio.timeout(10):
        await ledger.has_settled.wait()
    assert (ledger.settled, edge.started) == ([(0, 0)], [])


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"name": "a", "draft": "b", "verifier": "no-port"},
        {"name": "a", "draft": "b", "verifier": "h:1", "fallback": "moon"},
        {"name": "a", "draft": "b", "verifier": "h:1", "timeout_s": 0},
        {"name": "a", "draft": "b", "verifier": "h:1", "typo": 1},
        {"name": "a", "draft": "b", "verifier": "h:1", "input_per_million": 1},
    ],
)
def test_tables_that_cannot_be_are_refused(row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="drafted"):
        drafted_models([row])


@pytest.mark.parametrize(
    ("names", "allowed"),
    [([b"device:d1"], True), ([b"device:"], False), ([b"gateway:g"], False), ([], False),
     ([b"device:a", b"device:b"], False)],
)  # fmt: skip
def test_only_a_devices_certificate_may_verify(names: list[bytes], allowed: bool) -> None:
    assert may_call(names, "device") is allowed
