"""A request between its submission and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.fleet.health.lanes import Lane
from orchestrator.fleet.view import DeviceId
from orchestrator.fleet.view_store import Reservation
from orchestrator.hub.session import GatewaySession
from orchestrator.queueing.entry import Entry
from orchestrator.request import RouteRequest
from orchestrator.routing.decision import Prediction
from orchestrator.routing.record import DecisionRecord
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2

if TYPE_CHECKING:
    from orchestrator.hub.hedging import Hedge

# Where a request is that no device took yet.
NOWHERE = DeviceId("")


@dataclass(slots=True)
class ActiveRequest:
    """Where a request is and what became of its attempts. Times in monotonic ms.

    `submission` is kept for another attempt and dropped at the first token.
    """

    route: RouteRequest
    session: GatewaySession
    submission: inference_pb2.GenerateRequest | None
    started_ms: float
    record: DecisionRecord | None = None
    prediction: Prediction | None = None
    device_id: DeviceId = NOWHERE
    epoch: int = 0
    attempt: int = 0
    tried: set[DeviceId] = field(default_factory=set)
    reservation: Reservation | None = None
    sent_ms: float = 0.0
    # Where it was sent; None while it is nowhere.
    lane: Lane | None = None
    expected_ttft_ms: float = 0.0
    first_bound_ms: float = 0.0
    # Prompt tokens that the device had to prefill before it.
    ahead_tokens: int = 0
    # Requests that it held then.
    ahead_requests: int = 0
    # Slow outcomes in a row that its prediction knew of.
    slow_known: int = 0
    first_token_ms: float | None = None
    # The second device that has it; None when there is none.
    hedge: Hedge | None = None
    was_hedged: bool = False
    last_error: ShoalError | None = None
    # Who was to compute its prompt, by which figures; None: there was no question.
    shared_prefill: dict[str, object] | None = None
    # Its place in the hub's queue; None while it does not wait.
    entry: Entry | None = None
    queued_ms: float = 0.0
    # Time that it waited there, so far.
    queue_ms: float = 0.0

    def lost_error(self, what: str) -> ShoalError:
        """The failure when its device is lost, by `what`."""
        when = "before" if self.first_token_ms is None else "after"
        text = f"{what} {when} the first token; send the request again"
        return ShoalError(Reason.DEVICE_LOST, text)

    def is_on(self, device_id: DeviceId, epoch: int) -> bool:
        """Whether frames of this device's stream are about this attempt."""
        return self.epoch == epoch and self.device_id == device_id
