"""Which failures of a verifier keep later requests from it."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from agent.llama import verifier_link
from agent.llama.verifier_link import VerifierLinks, VerifierLostError
from shoal.errors import Reason, ShoalError
from shoal.v1 import verify_pb2 as pb


class Call:
    """A stream whose node says one thing."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    async def read(self) -> Any:
        return self._reply

    def cancel(self) -> None:
        pass


def refusal(reason: Reason) -> pb.VerifyReply:
    return pb.VerifyReply(failed=ShoalError(reason, "no").to_wire())


@pytest.mark.parametrize(
    ("reply", "rests"),
    [
        (refusal(Reason.CONTEXT_OVERFLOW), False),
        (refusal(Reason.INVALID_ARGUMENT), False),
        (refusal(Reason.OVERLOADED), True),
        (refusal(Reason.ENGINE_CRASHED), True),
        (grpc.aio.EOF, True),
        (pb.VerifyReply(verdict=pb.Verdict()), True),
    ],
)
async def test_only_what_says_something_of_the_node_rests_it(
    monkeypatch: pytest.MonkeyPatch, reply: Any, rests: bool
) -> None:
    class Stub:
        def __init__(self, channel: object) -> None:
            pass

        def Verify(self) -> Call:
            return Call(reply)

    monkeypatch.setattr(verifier_link.verify_pb2_grpc, "VerifierStub", Stub)
    links = VerifierLinks(None)
    monkeypatch.setattr(links, "_channel", lambda address: None)

    async def ask() -> str:
        with pytest.raises(VerifierLostError) as lost:
            async with links.open("node:1", 5.0) as stream:
                await stream.opened()
        return str(lost.value)

    first = await ask()
    assert await ask() == ("it failed a moment ago" if rests else first)
