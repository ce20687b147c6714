"""A fast device computes the prompt of a request that a slower one answers.

Before such a request goes to its device, the other one gets its prompt alone. When that
says that the blocks are in the shared tier, or fails, or takes longer than the prompt would
where it is answered, the request is placed as ever, and its device fetches what is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from orchestrator.fleet.view import DeviceId, FleetView
from orchestrator.fleet.view_store import Reservation
from orchestrator.hub.active import ActiveRequest
from orchestrator.hub.placing import DeviceLines, PlacementParts
from orchestrator.routing.decision import Decision
from orchestrator.routing.shared_prefill import PrefillChoice
from shoal.errors import ShoalError
from shoal.v1 import device_pb2, inference_pb2

_log = structlog.get_logger()

_SUFFIX = ".prefill"


@dataclass(frozen=True, slots=True)
class Prefilling:
    """One prompt on its way; `reservations`: places at the device that computes it and the one
    that will answer."""

    active: ActiveRequest
    choice: PrefillChoice
    epoch: int
    reservations: tuple[Reservation, ...]
    began_ms: float

    @property
    def prefill_id(self) -> str:
        """The id under which the other device knows it."""
        return self.active.route.request_id + _SUFFIX


class Prefills:
    """All prompts that are computed for another device now."""

    def __init__(self, parts: PlacementParts, lines: DeviceLines) -> None:
        self._router = parts.router
        self._views = parts.views
        self._clock = parts.clock
        self._lines = lines
        self._running: dict[str, Prefilling] = {}

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, active: ActiveRequest, decision: Decision, view: FleetView) -> bool:
        """Have another device compute the prompt, if that pays; False: place it now.

        Once a request, before its first attempt, and never for one that had to wait for a
        place: then every device has enough to do.
        """
        if active.attempt or active.entry is not None or active.shared_prefill is not None:
            return False
        choice = self._router.shared_prefill(active.route, decision, view)
        if choice is None or active.submission is None:
            return False
        active.shared_prefill = choice.figures()
        if not choice.elsewhere:
            return False
        return self._send(active, choice, decision.ranked[0])

    def hears(
        self, device_id: DeviceId, epoch: int, update: inference_pb2.SequenceUpdate
    ) -> ActiveRequest | None:
        """The request to place now, when the update ends the computation of its prompt."""
        prefilling = self._running.get(update.request_id)
        if prefilling is None:
            return None
        if (prefilling.choice.device_id, prefilling.epoch) != (device_id, epoch):
            return None
        if update.HasField("failed"):
            return self._end(prefilling, ShoalError.from_wire(update.failed).reason.value)
        if not update.HasField("finished"):
            return None
        timings = update.finished.timings
        if timings.HasField("joules"):
            self._note(prefilling.active, joules=round(timings.joules, 4))
        return self._end(prefilling, "finished")

    def late(self) -> list[ActiveRequest]:
        """Requests that wait for their prompt for longer than it would take them alone."""
        now_ms = self._clock.monotonic_ms()
        late = [p for p in self._running.values() if now_ms - p.began_ms > p.choice.local_ms]
        for prefilling in late:
            self._cancel(prefilling)
        return [self._end(prefilling, "late") for prefilling in late]

    def lost(self, device_id: DeviceId, epoch: int) -> list[ActiveRequest]:
        """Requests whose prompt was on a device that is gone."""
        gone = [
            p for p in self._running.values() if (p.choice.device_id, p.epoch) == (device_id, epoch)
        ]
        return [self._end(prefilling, "device_lost") for prefilling in gone]

    def drop(self, active: ActiveRequest) -> None:
        """The request is over."""
        prefilling = self._running.get(active.route.request_id + _SUFFIX)
        if prefilling is not None:
            self._cancel(prefilling)
            self._end(prefilling, "cancelled")

    def _send(self, active: ActiveRequest, choice: PrefillChoice, answering: DeviceId) -> bool:
        alone = inference_pb2.GenerateRequest()
        alone.CopyFrom(active.submission)
        alone.request_id = active.route.request_id + _SUFFIX
        alone.prefill_only = True
        alone.ClearField("speculation")
        command = inference_pb2.InferenceCommand(submit=alone)
        epoch = self._lines.send(choice.device_id, device_pb2.HubFrame(inference=command))
        if epoch is None:
            return False
        model, unix_ms = active.route.model, self._clock.unix_ms()
        reservations = (
            Reservation(choice.device_id, model, choice.prompt_tokens, unix_ms),
            # Nobody else is to be promised its slot meanwhile; it computes nothing yet.
            Reservation(answering, model, 0, unix_ms),
        )
        for reservation in reservations:
            self._views.reserve(reservation)
        began_ms = self._clock.monotonic_ms()
        prefilling = Prefilling(active, choice, epoch, reservations, began_ms)
        self._running[prefilling.prefill_id] = prefilling
        return True

    def _end(self, prefilling: Prefilling, outcome: str) -> ActiveRequest:
        del self._running[prefilling.prefill_id]
        for reservation in prefilling.reservations:
            self._views.release(reservation, prefill_ended=False)
        took_ms = self._clock.monotonic_ms() - prefilling.began_ms
        self._note(prefilling.active, outcome=outcome, took_ms=round(took_ms, 1))
        _log.info(
            "prompt_computed_elsewhere",
            request_id=prefilling.active.route.request_id,
            device_id=prefilling.choice.device_id,
            outcome=outcome,
            took_ms=round(took_ms, 1),
        )
        return prefilling.active

    def _cancel(self, prefilling: Prefilling) -> None:
        command = inference_pb2.InferenceCommand()
        command.cancel.request_id = prefilling.prefill_id
        self._lines.send(prefilling.choice.device_id, device_pb2.HubFrame(inference=command))

    @staticmethod
    def _note(active: ActiveRequest, **figures: object) -> None:
        active.shared_prefill = {**(active.shared_prefill or {}), **figures}
