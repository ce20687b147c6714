from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from agent.rpc.enrol import JoinRequest, enrol, renew
from agent.rpc.identity import IdentityStore, ca_der
from agent.rpc.membership import Membership
from agent.session.errors import AgentError, ExitCode
from agent.session.join_token import JoinToken
from tests.harness.agent_hub import Authority, Fleet


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    await fleet.start()
    yield fleet
    await fleet.stop()


def request_for(fleet: Fleet, token: str = "", url: str = "") -> JoinRequest:
    parsed = JoinToken.parse(token or fleet.authority.token())
    return JoinRequest(url or fleet.url, parsed, "pi", patience_s=0.0)


async def refusal(request: JoinRequest, home: Path) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await enrol(request, IdentityStore(home))
    assert not (home / "identity.json").exists()
    return caught.value


async def test_enrolled_identity_is_read_back_and_private(fleet: Fleet, tmp_path: Path) -> None:
    store = IdentityStore(tmp_path)
    identity = await enrol(request_for(fleet), store)
    assert store.load() == identity
    assert identity.hub_addresses == (fleet.link_address,)
    assert (tmp_path / "device.key").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in repr(identity)


async def test_token_is_not_sent_to_an_authority_it_was_not_made_for(tmp_path: Path) -> None:
    fleet = Fleet(presented=Authority())
    await fleet.start()
    try:
        failure = await refusal(request_for(fleet), tmp_path)
    finally:
        await fleet.stop()
    assert failure.exit_code is ExitCode.IMPOSTOR_CA
    assert fleet.enrolments == []


async def test_token_is_not_sent_to_a_server_the_authority_does_not_vouch_for(
    tmp_path: Path,
) -> None:
    fleet = Fleet(presented=Authority())
    await fleet.start()
    fleet.page["ca_pem"] = fleet.authority.pem.decode()
    try:
        failure = await refusal(request_for(fleet), tmp_path)
    finally:
        await fleet.stop()
    assert failure.exit_code is ExitCode.IMPOSTOR_CA
    assert fleet.enrolments == []


@pytest.mark.parametrize(
    ("status", "message", "exit_code"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "the token has expired", ExitCode.TOKEN_EXPIRED),
        (grpc.StatusCode.UNAUTHENTICATED, "the token was used before", ExitCode.TOKEN_USED),
        (grpc.StatusCode.UNAUTHENTICATED, "not one of this fleet's", ExitCode.TOKEN_FOREIGN),
        (grpc.StatusCode.ALREADY_EXISTS, "the name pi is taken", ExitCode.NAME_TAKEN),
        (grpc.StatusCode.INVALID_ARGUMENT, "csr_pem", ExitCode.ENROLMENT_REFUSED),
    ],
)
async def test_each_refusal_has_its_own_exit_code(
    fleet: Fleet, tmp_path: Path, status: grpc.StatusCode, message: str, exit_code: ExitCode
) -> None:
    fleet.script.refuse = (status, message)
    failure = await refusal(request_for(fleet), tmp_path)
    assert failure.exit_code is exit_code
    assert message in failure.message


async def test_unreachable_gateway_is_named(fleet: Fleet, tmp_path: Path) -> None:
    failure = await refusal(request_for(fleet, url="http://127.0.0.1:1"), tmp_path)
    assert failure.exit_code is ExitCode.UNREACHABLE
    assert "127.0.0.1:1" in failure.message


@pytest.mark.parametrize("token", ["", "shoal-join.a.b", "sk-shoal-xyz", "shoal-join.a.b.c"])
def test_malformed_token_names_the_remedy_and_not_the_token(token: str) -> None:
    with pytest.raises(AgentError, match="shoal token create") as caught:
        JoinToken.parse(token)
    assert caught.value.exit_code is ExitCode.USAGE


async def test_member_is_not_silently_kept_by_its_fleet_when_run_for_another(
    fleet: Fleet, tmp_path: Path
) -> None:
    own = JoinToken.parse(fleet.authority.token())
    identity = await enrol(request_for(fleet), IdentityStore(tmp_path))
    own.check_member(ca_der(identity.ca_pem), tmp_path)  # used up, but of this fleet
    with pytest.raises(AgentError, match="another --home") as caught:
        own.check_member(b"another authority", tmp_path)
    assert caught.value.exit_code is ExitCode.USAGE


async def test_fleet_without_a_common_protocol_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    fleet.page["protocol"] = {"min": 7, "max": 9}
    failure = await refusal(request_for(fleet), tmp_path)
    assert failure.exit_code is ExitCode.PROTOCOL


async def test_page_that_is_no_gateway_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    del fleet.page["ca_pem"]
    failure = await refusal(request_for(fleet), tmp_path)
    assert failure.exit_code is ExitCode.UNREACHABLE


async def test_renewal_keeps_the_key_and_replaces_the_certificate(
    fleet: Fleet, tmp_path: Path
) -> None:
    store = IdentityStore(tmp_path)
    old = await enrol(request_for(fleet), store)
    new = await renew(old)
    assert new.key_pem == old.key_pem
    assert new.certificate_pem != old.certificate_pem


async def test_certificate_is_renewed_when_a_third_of_its_life_is_left(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.script.certificate_age = timedelta(minutes=41)
    store = IdentityStore(tmp_path)
    identity = await enrol(request_for(fleet), store)
    assert identity.wants_renewal(datetime.now(UTC))
    membership = Membership(identity, store)
    task = asyncio.create_task(membership.keep_certificate_fresh())
    await asyncio.wait_for(fleet.renewed.wait(), 10)
    await asyncio.wait({task}, timeout=1)
    task.cancel()
    assert not membership.identity.wants_renewal(datetime.now(UTC))
    assert store.load() == membership.identity


async def test_hubs_that_moved_are_found_through_the_gateway(fleet: Fleet, tmp_path: Path) -> None:
    store = IdentityStore(tmp_path)
    membership = Membership(await enrol(request_for(fleet), store), store)
    fleet.page["hub_addresses"] = ["127.0.0.1:7"]
    await membership.look_up_hubs()
    assert membership.identity.hub_addresses == ("127.0.0.1:7",)
    assert store.load() == membership.identity


async def test_addresses_of_another_fleet_are_not_taken(fleet: Fleet, tmp_path: Path) -> None:
    store = IdentityStore(tmp_path)
    identity = await enrol(request_for(fleet), store)
    fleet.page |= {"hub_addresses": ["127.0.0.1:7"], "ca_pem": Authority().pem.decode()}
    membership = Membership(identity, store)
    await membership.look_up_hubs()
    assert membership.identity == identity


async def test_expired_certificate_ends_the_agent_with_the_remedy(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.script.certificate_age = timedelta(hours=2)
    store = IdentityStore(tmp_path)
    identity = await enrol(request_for(fleet), store)
    with pytest.raises(AgentError, match="expired") as caught:
        await Membership(identity, store).keep_certificate_fresh()
    assert caught.value.exit_code is ExitCode.IDENTITY_UNUSABLE
    lives_alone = Membership(identity, store, outlives_certificate=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lives_alone.keep_certificate_fresh(), 0.05)


@pytest.mark.parametrize("file", ["identity.json", "device.key", "device.crt", "ca.crt"])
async def test_damaged_identity_is_refused_with_the_remedy(
    fleet: Fleet, tmp_path: Path, file: str
) -> None:
    store = IdentityStore(tmp_path)
    await enrol(request_for(fleet), store)
    path = tmp_path / file
    damaged = bytearray(path.read_bytes())
    for at in random.Random(1).sample(range(30, len(damaged)), 8):
        damaged[at] ^= 0x55
    path.write_bytes(damaged)
    with pytest.raises(AgentError, match="join again") as caught:
        store.load()
    assert caught.value.exit_code is ExitCode.IDENTITY_UNUSABLE
