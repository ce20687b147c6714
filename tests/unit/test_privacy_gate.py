"""The gate: closed when in doubt, and no way round it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from orchestrator.dispatch import presidio
from orchestrator.dispatch.cloud_http import Ask, EndpointClient
from orchestrator.dispatch.detector import DetectorScreen, NoScreen, Screen, prompt_text
from orchestrator.dispatch.endpoint import CloudEndpoint, DetectorSettings
from orchestrator.dispatch.outbound import OutboundGate, OutboundPass
from orchestrator.dispatch.ruling import Ruling, closed, of_request, of_tenant, strictest
from orchestrator.identity.tenants import TenantPolicy
from orchestrator.request import Privacy
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb

ANY, PREFERRED, ONLY = Privacy.ANY, Privacy.LOCAL_PREFERRED, Privacy.LOCAL_ONLY


class Policies:
    """Policies by tenant; `away`: what the store raises."""

    def __init__(self, away: Exception | None = None, **levels: Privacy) -> None:
        self.levels = levels
        self.away = away
        self.num_read = 0

    async def policy(self, tenant: str) -> TenantPolicy | None:
        self.num_read += 1
        if self.away is not None:
            raise self.away
        level = self.levels.get(tenant)
        return TenantPolicy(level) if level else None


def ask(tenant: str = "acme", privacy: int = pb.PRIVACY_UNSPECIFIED) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="r", tenant=tenant, text="hello", hints=pb.RoutingHints(privacy=privacy)
    )  # type: ignore[arg-type]


def gate(policies: Policies, screen: Screen | None = None) -> OutboundGate:
    return OutboundGate(policies, screen or NoScreen())


@pytest.mark.parametrize("tenant", [ANY, PREFERRED, ONLY])
@pytest.mark.parametrize(
    ("asked", "level"),
    [
        (pb.PRIVACY_UNSPECIFIED, ANY),
        (pb.PRIVACY_ANY, ANY),
        (pb.PRIVACY_LOCAL_PREFERRED, PREFERRED),
        (pb.PRIVACY_LOCAL_ONLY, ONLY),
        (99, ONLY),
    ],
)
async def test_stricter_of_request_and_tenant_wins(
    tenant: Privacy, asked: int, level: Privacy
) -> None:
    order = [ANY, PREFERRED, ONLY]
    request = ask(privacy=asked)
    ruling = await gate(Policies(acme=tenant)).rule(request)
    assert ruling.level is max(tenant, level, key=order.index)
    # What the hops below see is what was ruled.
    assert pb.Privacy.Name(request.hints.privacy) == f"PRIVACY_{ruling.level.name}"


@pytest.mark.parametrize(
    ("policies", "tenant", "reason"),
    [
        (Policies(), "acme", Reason.PERMISSION_DENIED),
        (Policies(acme=ANY), "", Reason.PERMISSION_DENIED),
        (Policies(acme=ANY), "other", Reason.PERMISSION_DENIED),
        (Policies(acme=ONLY), "acme", Reason.PERMISSION_DENIED),
        (Policies(RedisConnectionError("gone"), acme=ANY), "acme", Reason.NO_DEVICE),
        (Policies(TimeoutError(), acme=ANY), "acme", Reason.NO_DEVICE),
    ],
)
async def test_closed_when_in_doubt(policies: Policies, tenant: str, reason: Reason) -> None:
    request = ask(tenant, pb.PRIVACY_ANY)
    with pytest.raises(ShoalError) as caught:
        await gate(policies).admit(request)
    assert caught.value.reason is reason
    ruling = await gate(policies).rule(request)
    assert ruling.level is ONLY
    assert request.hints.privacy == pb.PRIVACY_LOCAL_ONLY


async def test_store_that_hangs_closes_the_gate_in_bounded_time() -> None:
    class Hanging(Policies):
        async def policy(self, tenant: str) -> TenantPolicy | None:
            await asyncio.Event().wait()
            return None

    async with asyncio.timeout(5):
        assert (await gate(Hanging()).rule(ask())).in_doubt


async def test_nothing_leaves_on_a_remembered_policy() -> None:
    policies = Policies(acme=ANY)
    guard = gate(policies)
    await guard.rule(ask())
    await guard.rule(ask())
    assert policies.num_read == 1
    await guard.admit(ask())
    policies.levels["acme"] = ONLY
    with pytest.raises(ShoalError):
        await guard.admit(ask())
    policies.away = RedisConnectionError("gone")
    with pytest.raises(ShoalError):
        await guard.admit(ask())
    # The failure also ends what was remembered.
    assert (await guard.rule(ask())).in_doubt


async def test_pass_holds_the_request_that_was_judged() -> None:
    request = ask()
    outbound = await gate(Policies(acme=ANY)).admit(request)
    request.text = "something else"
    assert outbound.request.text == "hello"
    with pytest.raises(AttributeError):
        outbound.request = request  # type: ignore[misc]


def test_pass_cannot_be_made_elsewhere() -> None:
    arguments: Any = (object(), ask(), Ruling(ANY, "mine"), TenantPolicy(ANY))
    with pytest.raises(TypeError):
        OutboundPass(*arguments)
    with pytest.raises(TypeError):
        type("Mine", (OutboundPass,), {})


@pytest.mark.parametrize("forged", [None, ask(), object()])
async def test_client_sends_nothing_without_a_pass(forged: Any) -> None:
    client = EndpointClient(CloudEndpoint("e", "http://127.0.0.1:9/v1", ()))
    with pytest.raises(TypeError):
        await client.stream(forged, Ask("m", None, 1), lambda chunk: True)
    await client.close()


def test_strictest_prefers_what_is_certain() -> None:
    certain = of_request(ONLY)
    assert strictest(closed("Who knows."), certain) is certain
    assert strictest(of_tenant("t", ANY), of_request(None)).level is ANY


class Finder:
    """A detector for these tests: finds the word SECRET."""

    def kinds(self, text: str) -> frozenset[str]:
        if "CRASH" in text:
            raise RuntimeError(text)
        return frozenset({"SECRET"}) if "SECRET" in text else frozenset()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> DetectorScreen:
    monkeypatch.setattr(presidio, "load_detector", lambda settings: Finder())
    return DetectorScreen(DetectorSettings("presidio"))


async def loaded(screen: DetectorScreen) -> DetectorScreen:
    await screen.loaded()
    return screen


@pytest.mark.parametrize(("tenant", "level"), [(ANY, ONLY), (ONLY, ONLY)])
async def test_detector_raises_a_level(
    screen: DetectorScreen, tenant: Privacy, level: Privacy
) -> None:
    request = ask()
    request.text = "a SECRET word"
    ruling = await gate(Policies(acme=tenant), await loaded(screen)).rule(request)
    assert ruling.level is level
    assert "word" not in ruling.because


async def test_detector_never_lowers_a_level(screen: DetectorScreen) -> None:
    assert (await gate(Policies(acme=PREFERRED), await loaded(screen)).rule(ask())).level is (
        PREFERRED
    )


async def test_detector_that_fails_keeps_the_text(
    screen: DetectorScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ask()
    request.text = "CRASH zebra"
    ruling = await gate(Policies(acme=ANY), await loaded(screen)).rule(request)
    assert ruling.in_doubt
    seen = capsys.readouterr()
    assert "zebra" not in ruling.because + seen.out + seen.err


async def test_token_ids_stay_when_a_detector_is_configured(screen: DetectorScreen) -> None:
    request = ask()
    request.tokens.ids.extend([1, 2])
    ruling = await gate(Policies(acme=ANY), await loaded(screen)).rule(request)
    assert (ruling.level, ruling.in_doubt) == (ONLY, False)


async def test_detector_that_is_not_installed_closes_the_gate_and_says_so() -> None:
    screen = DetectorScreen(DetectorSettings("presidio"))
    await screen.loaded()
    ruling = await screen.judge(ask())
    try:
        import presidio_analyzer  # noqa: F401
    except ImportError:
        assert ruling.level is ONLY
        assert "pip install" in ruling.because
    else:
        assert ruling.level is ANY


def test_all_free_text_is_searched() -> None:
    request = pb.GenerateRequest(stop=["end"])
    request.chat.messages.add(role="user", content="one", name="two")
    text = prompt_text(request)
    assert text is not None
    assert set(text.split()) == {"one", "two", "end"}


async def test_local_request_may_go_to_nodes_that_count_as_the_edge_and_no_others() -> None:
    judge = gate(Policies(acme=ONLY))
    with pytest.raises(ShoalError, match="may not leave"):
        await judge.admit(ask())
    outbound = await judge.admit(ask(), own=True)
    assert outbound.own_only
    stranger = CloudEndpoint("far", "http://127.0.0.1:9/v1", ())
    with pytest.raises(TypeError, match="own nodes"):
        await EndpointClient(stranger).stream(outbound, Ask("m", 1, 1.0), lambda _: True)


@pytest.mark.parametrize("policies", [Policies(), Policies(RedisConnectionError(), acme=ONLY)])
async def test_in_doubt_not_even_own_nodes_are_asked(policies: Policies) -> None:
    with pytest.raises(ShoalError):
        await gate(policies).admit(ask(), own=True)
