"""What stands behind the local text endpoints: one key, a bound, this device's engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from ipaddress import ip_address

from agent.local_api.key import LocalKey
from agent.rpc.local import LocalRequests
from shoal.errors import Reason, ShoalError, invalid
from shoal.http.admission import Admission
from shoal.http.choices import RunningChoices
from shoal.http.endpoint import Asked, TextRun
from shoal.openai.extension import RoutingHints
from shoal.openai.outcome import Outcome
from shoal.openai.request import TextRequest
from shoal.openai.wire import Origin, to_generate_requests
from shoal.v1 import inference_pb2 as pb

TENANT = "local"
# Of which an engine runs some and queues 64: beyond it, bodies would only fill memory.
MAX_IN_FLIGHT = 128
_MAX_KEY_CHARS = 512

Ended = Callable[[str, Outcome, ShoalError | None], None]


@dataclass(frozen=True, slots=True)
class LocalText:
    """A `TextService` (`shoal.http.endpoint`) over this device's engines.

    `require_key` False: anyone who reaches the port may ask, which a browser's pages may not.
    """

    requests: LocalRequests
    key: LocalKey
    ended: Ended
    require_key: bool = True
    request_timeout_s: float = 600.0
    admission: Admission = field(default_factory=lambda: Admission(MAX_IN_FLIGHT))

    async def tenant(self, headers: Mapping[str, str]) -> str:
        """Local clients are one tenant; raises UNAUTHENTICATED, PERMISSION_DENIED."""
        if self.require_key:
            self._check_key(headers)
        else:
            check_not_a_page(headers)
        return TENANT

    def slot(self, tenant: str) -> AbstractContextManager[None]:
        """A place among this device's local requests."""
        return self.admission.slot(tenant)

    def failed(self, error: ShoalError) -> None:
        """Nothing to count: what was started is counted at its end."""

    async def start(self, parsed: TextRequest, asked: Asked) -> TextRun:
        """Put every choice into its engine's queue, marked to stay on this device."""
        self._check_place(parsed.hints)
        origin = Origin(
            request_id=asked.request_id,
            tenant=asked.tenant,
            tenant_salt=self.key.salt(),
            deadline_unix_ms=asked.deadline_unix_ms,
        )
        messages = to_generate_requests(parsed, origin)
        for message in messages:
            message.hints.privacy = pb.PRIVACY_LOCAL_ONLY
        generations = [self.requests.start(message) for message in messages]
        outcomes = [Outcome(message.request_id, "edge", "local_only") for message in messages]

        def ended(failure: ShoalError | None) -> None:
            for outcome in outcomes:
                self.ended(parsed.model, outcome, failure)

        return TextRun(RunningChoices(generations), outcomes, ended)

    def _check_key(self, headers: Mapping[str, str]) -> None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip()
        known = scheme.lower() == "bearer" and 0 < len(key) <= _MAX_KEY_CHARS
        if not known or not self.key.fits(key):
            raise ShoalError(
                Reason.UNAUTHENTICATED,
                "This device's own API key is required: send 'Authorization: Bearer KEY'. "
                "On the device, 'shoal agent status' shows it.",
            )

    def _check_place(self, hints: RoutingHints) -> None:
        here = self.requests.placed
        if hints.device and hints.device not in (here.device_id, here.device_name):
            raise invalid(
                "shoal.device",
                f"This is the API of the device {here.device_name} alone. Ask the fleet's "
                "gateway for another.",
            )
        if hints.device_class and hints.device_class != here.device_class:
            raise invalid(
                "shoal.class",
                f"This is the API of one device, of class {here.device_class}. Ask the "
                "fleet's gateway for another class.",
            )


def check_not_a_page(headers: Mapping[str, str]) -> None:
    """Without a key: raises PERMISSION_DENIED for what a web page can make a browser send.

    Pages name themselves in `Origin`; one that points its own name at this machine
    (DNS rebinding) has that name in `Host`.
    """
    host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
    if "origin" in headers or not _is_loopback_name(host.strip("[]")):
        raise ShoalError(
            Reason.PERMISSION_DENIED,
            "Without a key only programs on this device are served, by a loopback address.",
        )


def _is_loopback_name(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
