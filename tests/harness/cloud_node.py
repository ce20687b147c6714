"""A real cloud node and a real device's engine, with certificates of one authority."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from orchestrator.identity.authority import Authority
from shoal.v1 import verify_pb2 as pb
from shoal.v1 import verify_pb2_grpc
from shoal.wire import CHANNEL_OPTIONS, CLOUD_TLS_NAME
from tests.harness.engine_process import EngineProcess, running_engine


@dataclass
class Certificates:
    """Folders that the two sides read."""

    home: Path
    device: Path


def make_certificates(folder: Path) -> Certificates:
    """An authority, a node's certificate and a device's."""
    authority = Authority.load_or_create(folder / "ca")
    made = Certificates(folder / "home", folder / "device")
    for target, common_name, names, stem in (
        (made.home / "cloud", "cloud:cloud-1", (CLOUD_TLS_NAME,), "tls"),
        (made.device, "device:d1", (), "device"),
    ):
        target.mkdir(parents=True)
        key_pem, certificate_pem = authority.issue_service(common_name, names)
        (target / f"{stem}.key").write_text(key_pem)
        (target / f"{stem}.crt").write_text(certificate_pem)
        (target / "ca.crt").write_text(authority.ca_pem)
    return made


@contextlib.contextmanager
def running_node(
    home: Path, model: Path, *engine_arguments: str, name: str = "target", port: int = 0
) -> Iterator[str]:
    """A cloud node that serves `model` by this name; yields its address. `port` 0: any."""
    command = [sys.executable, "-m", "cloud.app", "--home", str(home), "--model", str(model)]
    command += ["--name", name, "--port", str(port)]
    for argument in engine_arguments:
        command.append(f"--engine-arg={argument}")
    with (home / "node.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        line = process.stdout.readline() if process.stdout else b""
        if not line:
            raise RuntimeError(f"the node ended: {(home / 'node.log').read_text()[-500:]}")
        yield json.loads(line)["address"]
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout:
            process.stdout.close()


@contextlib.contextmanager
def drafting_engine(
    certificates: Certificates, model: Path, *flags: str
) -> Iterator[EngineProcess]:
    """A device's engine that can dial verifiers."""
    with running_engine(model, "--identity", str(certificates.device), *flags) as engine:
        yield engine


@contextlib.asynccontextmanager
async def relayed(
    certificates: Certificates, node: str, relay: Callable[[grpc.aio.Channel], Any]
) -> AsyncIterator[str]:
    """The address of a Verifier between device and node, made from a channel to the node.

    It shows the node's certificate and dials with the device's.
    """
    device, cloud = certificates.device, certificates.home / "cloud"
    ca = (device / "ca.crt").read_bytes()
    dial = grpc.ssl_channel_credentials(
        ca, (device / "device.key").read_bytes(), (device / "device.crt").read_bytes()
    )
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", CLOUD_TLS_NAME))
    async with grpc.aio.secure_channel(node, dial, options=options) as upstream:
        server = grpc.aio.server()
        verify_pb2_grpc.add_VerifierServicer_to_server(relay(upstream), server)
        pair = ((cloud / "tls.key").read_bytes(), (cloud / "tls.crt").read_bytes())
        credentials = grpc.ssl_server_credentials([pair], ca, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        yield f"127.0.0.1:{port}"
        await server.stop(None)


class _LostAtFirstDraft(verify_pb2_grpc.VerifierServicer):
    """Passes the opening on, and breaks the stream where drafts come."""

    def __init__(self, upstream: grpc.aio.Channel) -> None:
        self._stub = verify_pb2_grpc.VerifierStub(upstream)

    async def Verify(
        self, request_iterator: AsyncIterator[pb.VerifyRequest], context: Any
    ) -> AsyncIterator[pb.VerifyReply]:
        call = self._stub.Verify()
        await call.write(await anext(aiter(request_iterator)))
        opened = await call.read()
        opened.opened.token_ms = 1e4  # so slow that drafting pays
        yield opened
        await anext(aiter(request_iterator))
        call.cancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")


def lost_at_first_draft(
    certificates: Certificates, node: str
) -> contextlib.AbstractAsyncContextManager[str]:
    """The address of a node that is lost with the first drafts in its hands."""
    return relayed(certificates, node, _LostAtFirstDraft)
