"""What somebody gets who answers in the fleet's place: not one byte of the token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agent.rpc.enrol import JoinRequest, enrol
from agent.rpc.identity import IdentityStore
from agent.session.errors import AgentError, ExitCode
from agent.session.join_token import JoinToken
from orchestrator.identity import join_tokens
from orchestrator.identity.authority import Authority
from shoal.wire import PROTOCOL_VERSION


class Recorder:
    """Listens, answers with fixed bytes, and keeps every byte that it was sent."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.received = bytearray()
        self.num_connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._writers.append(writer)
        while part := await reader.read(65536):
            self.received += part
            if self.answer:
                writer.write(self.answer)
                await writer.drain()
                break
        writer.close()


def page(authority: Authority, enrol_address: str) -> bytes:
    body = json.dumps(
        {
            "ca_pem": authority.ca_pem,
            "enrol_address": enrol_address,
            "hub_addresses": [enrol_address],
            "protocol": {"min": PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("shown", ["its own authority", "the fleet's, which is public"])
async def test_impostor_receives_no_byte_of_the_token(tmp_path: Path, shown: str) -> None:
    fleet = Authority.load_or_create(tmp_path / "fleet")
    own = Authority.load_or_create(tmp_path / "impostor")
    text = join_tokens.JoinToken.new(fleet.ca_sha256).text
    token = JoinToken.parse(text)
    # A TLS alert: it cannot go on with a handshake for which it has no key.
    port = Recorder(b"\x15\x03\x03\x00\x02\x02\x28")
    enrol_address = await port.start()
    gateway = Recorder(page(own if shown == "its own authority" else fleet, enrol_address))
    url = f"http://{await gateway.start()}"

    try:
        request = JoinRequest(url, token, "pi", patience_s=0.0)
        with pytest.raises(AgentError) as caught:
            await asyncio.wait_for(enrol(request, IdentityStore(tmp_path / "a")), 30)
    finally:
        await gateway.stop()
        await port.stop()

    assert gateway.received.startswith(b"GET /shoal/v1/join")
    sent = bytes(gateway.received + port.received)
    _, token_id, secret, pin = text.split(".")
    assert not [part for part in (token_id, secret, pin) if part.encode() in sent]
    if shown == "its own authority":
        assert caught.value.exit_code is ExitCode.IMPOSTOR_CA
        assert port.num_connections == 0
    assert not (tmp_path / "a" / "identity.json").exists()
