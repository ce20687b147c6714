"""Every RPC of the contracts, called by those who must not: nobody gets an answer.

The RPCs come from the descriptors, so that a new one fails here until it is listed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

import shoal.v1
from orchestrator.fleet.registry_redis import connect
from orchestrator.fleet.view import DeviceId
from orchestrator.identity.authority import Authority
from shoal.v1 import device_pb2
from shoal.wire import HUB_TLS_NAME
from tests.harness.hub_rig import HubRig, ScriptedDevice, running_hub
from tests.harness.redis_server import running_redis

TIMEOUT_S = 20.0
DEVICE, GATEWAY = "device", "gateway"
# Who may call what at a hub's link port.
CALLERS = {
    "DeviceLink": DEVICE,
    "Renewal": DEVICE,
    "ModelFiles": DEVICE,
    "Fleet": GATEWAY,
    "Inference": GATEWAY,
    "Catalogue": GATEWAY,
}
# Served elsewhere, with the reason why no certificate is asked for.
ELSEWHERE = {
    "Enrolment": "the caller has none yet: its token is checked, test_identity_enrolment.py",
    "EngineControl": "a Unix socket in a folder of mode 0700, agent and engine of one user",
    "Verifier": "a cloud node's, which devices never reach; its own authentication",
}


def methods() -> list[MethodDescriptor]:
    """All RPCs of all contracts."""
    for module in pkgutil.iter_modules(shoal.v1.__path__):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"shoal.v1.{module.name}")
    found = []
    for module in pkgutil.iter_modules(shoal.v1.__path__):
        if module.name.endswith("_pb2"):
            name = module.name.removesuffix("_pb2")
            file = descriptor_pool.Default().FindFileByName(f"shoal/v1/{name}.proto")
            for service in file.services_by_name.values():
                found += service.methods
    return found


HUB_METHODS = [m for m in methods() if m.containing_service.name in CALLERS]
NAMES = [f"{m.containing_service.name}.{m.name}" for m in HUB_METHODS]


def test_every_service_is_listed_with_who_may_call_it() -> None:
    services = {method.containing_service.name for method in methods()}
    assert services <= CALLERS.keys() | ELSEWHERE.keys()
    assert len(HUB_METHODS) > 5


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
async def rig(tmp_path: Path, redis_url: str) -> AsyncIterator[HubRig]:
    client = connect(redis_url)
    await client.flushall()
    await client.aclose()
    async with running_hub(tmp_path, redis_url) as rig:
        yield rig


def channel(rig: HubRig, keys: tuple[bytes, bytes] | None) -> grpc.aio.Channel:
    """To the link port, with or without a certificate; the hub's own is always trusted."""
    credentials = grpc.ssl_channel_credentials(rig.authority.ca_pem.encode(), *(keys or ()))
    options = [("grpc.ssl_target_name_override", HUB_TLS_NAME)]
    return grpc.aio.secure_channel(rig.hub.addresses.link, credentials, options=options)


async def outcome(channel: grpc.aio.Channel, method: MethodDescriptor) -> grpc.StatusCode | str:
    """What a call with an empty message gets: a status, or "answered"."""
    service = method.containing_service
    call = channel.stream_stream(f"/{service.full_name}/{method.name}")(
        iter([first_message(method)]), timeout=TIMEOUT_S
    )
    try:
        reply = await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    if reply is grpc.aio.EOF:
        return await call.code()
    if method.containing_service.name == "DeviceLink":
        # Its way to refuse is a frame that says why.
        frame = device_pb2.HubFrame.FromString(reply)
        if frame.WhichOneof("frame") == "reject":
            return device_pb2.Reject.Reason.Name(frame.reject.reason)
    return "answered"


def first_message(method: MethodDescriptor) -> bytes:
    if method.containing_service.name == "DeviceLink":
        hello = device_pb2.Hello(min_protocol=1, max_protocol=1)
        return device_pb2.DeviceFrame(hello=hello).SerializeToString()
    return b""


async def outcomes(
    rig: HubRig, keys: tuple[bytes, bytes] | None
) -> dict[str, grpc.StatusCode | str]:
    async with channel(rig, keys) as open_channel:
        return {
            name: await outcome(open_channel, method)
            for name, method in zip(NAMES, HUB_METHODS, strict=True)
        }


def service_keys(authority: Authority, name: str) -> tuple[bytes, bytes]:
    key, certificate = authority.issue_service(name)
    return key.encode(), certificate.encode()


@pytest.mark.parametrize("role", [DEVICE, GATEWAY, "hub"])
async def test_nothing_is_answered_without_a_certificate_of_this_authority(
    rig: HubRig, tmp_path: Path, role: str
) -> None:
    foreign = Authority.load_or_create(tmp_path / "foreign")
    long_ago = datetime.now(UTC) - timedelta(days=400)
    expired = Authority.load_or_create(tmp_path / "ca", now=lambda: long_ago)
    for keys in (
        None,
        service_keys(foreign, f"{role}:1"),
        service_keys(expired, f"{role}:1"),
    ):
        assert await outcomes(rig, keys) == dict.fromkeys(NAMES, grpc.StatusCode.UNAVAILABLE)


async def test_a_role_gets_no_answer_to_what_is_the_other_ones(rig: HubRig) -> None:
    device = await rig.enrol("pi")
    for role, keys in (
        (DEVICE, device._keys),
        (GATEWAY, service_keys(rig.authority, "gateway:g1")),
        ("hub", service_keys(rig.authority, "hub:h2")),
        ("", service_keys(rig.authority, "device:")),
    ):
        seen = await outcomes(rig, keys)
        forbidden = [name for name in NAMES if CALLERS[name.partition(".")[0]] != role]
        assert {name: seen[name] for name in forbidden} == dict.fromkeys(
            forbidden, grpc.StatusCode.PERMISSION_DENIED
        )


async def revoked(rig: HubRig) -> ScriptedDevice:
    device = await rig.enrol("pi")
    await rig.registry.revoke(DeviceId(device.device_id))
    return device


async def test_removed_device_gets_no_answer_to_anything(rig: HubRig) -> None:
    device = await revoked(rig)
    seen = await outcomes(rig, device._keys)
    assert seen.pop("DeviceLink.Connect") == "REASON_REVOKED"
    assert seen == dict.fromkeys(seen, grpc.StatusCode.PERMISSION_DENIED)


async def test_certificate_of_a_device_that_never_enrolled_gets_no_answer(rig: HubRig) -> None:
    keys = service_keys(rig.authority, "device:never")
    seen = await outcomes(rig, keys)
    assert seen.pop("DeviceLink.Connect") == "REASON_UNKNOWN_DEVICE"
    assert seen == dict.fromkeys(seen, grpc.StatusCode.PERMISSION_DENIED)
