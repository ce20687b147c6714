"""Which tiers may serve a request, in which order; pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.dispatch.ruling import Ruling
from orchestrator.request import Privacy
from orchestrator.routing.tree import tier_for
from shoal.errors import Reason, ShoalError


@dataclass(frozen=True, slots=True)
class ModelPresence:
    """What is known of a model: parameters 0 for unknown."""

    num_parameters: int
    on_edge: bool
    ready_devices: int
    in_cloud: bool
    # Some cloud endpoint counts as the fleet's edge.
    on_own_node: bool = False


@dataclass(frozen=True, slots=True)
class TierPlan:
    """Tiers in the order to try, and why; the next one only before the first token."""

    tiers: tuple[str, ...]
    reason: str


def plan_tiers(
    model: str, presence: ModelPresence, *, ruling: Ruling, pinned_to_device: bool
) -> TierPlan:
    """The tiers for one request.

    `ruling`: how far the request may travel. A request pinned to a device or class
    stays on the edge. A model that is known nowhere goes to the edge
    too, whose hub says whether it is unknown or merely not present.

    Raises PERMISSION_DENIED when the request may not leave the edge and only the cloud
    has the model; NO_DEVICE instead when asking again may give another ruling.
    """
    if not ruling.may_leave:
        if presence.on_own_node and not ruling.in_doubt and not pinned_to_device:
            tiers = ("edge", "cloud") if presence.on_edge else ("cloud",)
            return TierPlan(tiers, f"The request stays on the fleet's own nodes. {ruling.because}")
        if presence.in_cloud and not presence.on_edge:
            raise _cloud_only(model, ruling)
        return TierPlan(("edge",), f"The request may not leave the edge. {ruling.because}")
    if not presence.in_cloud:
        return TierPlan(("edge",), "No cloud endpoint serves the model.")
    if pinned_to_device:
        return TierPlan(("edge",), "The request names a device or a device class.")
    if not presence.on_edge:
        return TierPlan(("cloud",), "Only the cloud serves the model.")
    return _of_both(presence, ruling.level)


def _cloud_only(model: str, ruling: Ruling) -> ShoalError:
    because = f"The model '{model}' is served only in the cloud, and the request must stay local: "
    if ruling.in_doubt:
        return ShoalError(
            Reason.NO_DEVICE, f"{because}{ruling.because} Try again soon.", retry_after_ms=1_000
        )
    return ShoalError(
        Reason.PERMISSION_DENIED,
        f"{because}{ruling.because} Choose a model of the fleet, or allow the cloud.",
        param="shoal.privacy",
    )


def _of_both(presence: ModelPresence, privacy: Privacy) -> TierPlan:
    if presence.ready_devices == 0:
        return TierPlan(("cloud", "edge"), "No device that serves the model is ready.")
    if privacy is Privacy.LOCAL_PREFERRED:
        return TierPlan(("edge", "cloud"), "The request prefers the edge.")
    if tier_for(presence.num_parameters) == "cloud":
        return TierPlan(("cloud", "edge"), "A model of 7B parameters or more goes to the cloud.")
    return TierPlan(("edge", "cloud"), "A model below 7B parameters goes to the edge.")
