from __future__ import annotations

from typing import Any

import pytest

from cloud.relay import may_call
from orchestrator.dispatch.detector import NoScreen
from orchestrator.dispatch.outbound import OutboundGate
from orchestrator.dispatch.speculative import DraftedGeneration, drafting_request
from orchestrator.dispatch.speculative_models import DraftedModel, drafted_models
from orchestrator.identity.tenants import TenantPolicy
from orchestrator.request import Privacy
from shoal.v1 import inference_pb2 as pb

MODEL = DraftedModel("big", "small", "10.0.0.5:8600", "cloud", 2.0)


class Policies:
    def __init__(self, level: Privacy | None) -> None:
        self.level = level

    async def policy(self, tenant: str) -> TenantPolicy | None:
        return TenantPolicy(self.level) if self.level else None


class Edge:
    """Keeps what it was asked to start."""

    def __init__(self) -> None:
        self.started: list[pb.GenerateRequest] = []

    def start(self, request: pb.GenerateRequest) -> Any:
        self.started.append(request)
        return self

    async def take(self) -> list[pb.SequenceUpdate]:
        return [pb.SequenceUpdate(request_id="r", finished=pb.Finished())]


def gate(level: Privacy | None) -> OutboundGate:
    return OutboundGate(Policies(level), NoScreen())


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
    edge = Edge()
    generation = DraftedGeneration(edge, gate(level), ask(privacy), MODEL)  # type: ignore[arg-type]
    (update,) = await generation.take()
    assert update.HasField("failed")
    assert edge.started == []


async def test_one_that_may_leave_goes_to_the_devices() -> None:
    edge = Edge()
    generation = DraftedGeneration(edge, gate(Privacy.ANY), ask(), MODEL)  # type: ignore[arg-type]
    await generation.take()
    assert [each.model for each in edge.started] == ["small"]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"name": "a", "draft": "b", "verifier": "no-port"},
        {"name": "a", "draft": "b", "verifier": "h:1", "fallback": "moon"},
        {"name": "a", "draft": "b", "verifier": "h:1", "timeout_s": 0},
        {"name": "a", "draft": "b", "verifier": "h:1", "typo": 1},
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
