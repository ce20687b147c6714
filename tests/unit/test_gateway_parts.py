"""The gateway's small parts: keys in memory, admission, salts, headers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from starlette.requests import Request
from starlette.types import Message

from orchestrator.gateway.auth import CACHE_S, Authenticator, Caller
from orchestrator.gateway.salt import TenantSalts
from shoal.errors import Reason, ShoalError
from shoal.http.admission import Admission
from shoal.http.bodies import error_response, header_text, read_body


@dataclass
class Owner:
    tenant: str
    role: str


class Keys:
    def __init__(self) -> None:
        self.known = {"k-user": Owner("acme", "user"), "k-admin": Owner("ops", "admin")}
        self.asked = 0

    async def authenticate(self, plaintext: str) -> Caller:
        self.asked += 1
        if plaintext not in self.known:
            raise ShoalError(Reason.UNAUTHENTICATED, "unknown key")
        return self.known[plaintext]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_key_is_remembered_for_a_few_seconds_and_no_longer() -> None:
    keys, now_s = Keys(), [100.0]
    authenticator = Authenticator(keys, lambda: now_s[0])
    for _ in range(3):
        assert (await authenticator.caller(bearer("k-user"))).tenant == "acme"
    assert keys.asked == 1
    del keys.known["k-user"]
    now_s[0] += CACHE_S
    with pytest.raises(ShoalError):
        await authenticator.caller(bearer("k-user"))


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": ""}, {"authorization": "k-user"}, {"authorization": "Basic k-user"},
     bearer(""), bearer("x" * 600), bearer("wrong"), bearer("\udcff")],
)  # fmt: skip
async def test_everything_else_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ShoalError) as caught:
        await Authenticator(Keys()).caller(headers)
    assert caught.value.reason is Reason.UNAUTHENTICATED


async def test_wrong_key_is_asked_for_each_time() -> None:
    keys = Keys()
    authenticator = Authenticator(keys)
    for _ in range(2):
        with pytest.raises(ShoalError):
            await authenticator.caller(bearer("later"))
    keys.known["later"] = Owner("t", "user")
    assert (await authenticator.caller(bearer("later"))).tenant == "t"


async def test_only_admins_pass_as_admins() -> None:
    authenticator = Authenticator(Keys())
    assert (await authenticator.admin(bearer("k-admin"))).tenant == "ops"
    with pytest.raises(ShoalError) as caught:
        await authenticator.admin(bearer("k-user"))
    assert caught.value.http_status == 403


def test_admission_refuses_beyond_its_limit() -> None:
    admission = Admission(1)
    with admission.slot("t"), pytest.raises(ShoalError) as caught, admission.slot("t"):
        pass
    assert caught.value.http_status == 429
    assert admission.in_flight == 0


def test_admission_frees_the_place_of_a_failed_request() -> None:
    admission = Admission(1)
    with pytest.raises(KeyError), admission.slot("t"):
        raise KeyError
    assert admission.in_flight == 0


def test_one_tenants_flood_leaves_places_to_the_others() -> None:
    admission = Admission(8)
    with ExitStack() as held:
        for _ in range(6):
            held.enter_context(admission.slot("flood"))
        held.enter_context(admission.slot("other"))
        with pytest.raises(ShoalError) as caught:
            held.enter_context(admission.slot("flood"))
        assert "6 of them" in caught.value.message
        held.enter_context(admission.slot("other"))
    assert admission.in_flight == 0


def test_salts_differ_by_tenant_and_by_fleet_and_stay_the_same() -> None:
    salts = TenantSalts(b"k" * 32)
    assert salts.salt("a") == TenantSalts(b"k" * 32).salt("a")
    assert len({salts.salt("a"), salts.salt("b"), TenantSalts(b"x" * 32).salt("a")}) == 3


def test_header_text_is_one_ascii_line() -> None:
    assert header_text("a\r\nset-cookie: x\tü") == "a set-cookie: x ?"
    assert len(header_text("x" * 1000)) == 300


async def test_body_that_never_ends_is_given_up_with_408() -> None:
    sent: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        return sent.pop() if sent else await asyncio.get_running_loop().create_future()

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(ShoalError) as caught:
        await read_body(request, limit_s=0.01)
    answer = error_response(caught.value)
    assert answer.status_code == 408
    assert answer.headers["connection"] == "close"
