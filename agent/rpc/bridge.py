"""Between the hub's inference frames and the engines' sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agent.rpc.charging import Charging
from agent.session.requests import RequestLedger
from shoal.errors import Reason, ShoalError
from shoal.v1 import engine_pb2
from shoal.v1 import inference_pb2 as pb


class Engine(Protocol):
    """What the bridge needs of an engine."""

    @property
    def report(self) -> engine_pb2.ModelReport:
        """The model in its present state."""

    def send(self, command: pb.InferenceCommand) -> bool:
        """Hand over a command; False when the engine does not serve now."""


class Bridge:
    """Forwards commands to the right engine and engine frames to the hub, as they are."""

    def __init__(
        self,
        ledger: RequestLedger,
        find_engine: Callable[[str], Engine | None],
        send_frame: Callable[[pb.InferenceFrame], object],
        charging: Charging,
    ) -> None:
        self._ledger = ledger
        self._find_engine = find_engine
        self._send_frame = send_frame
        self._charging = charging

    def take_command(self, command: pb.InferenceCommand) -> None:
        """Carry out the hub's command; a refusal goes back as `failed`.

        A newer hub's command that this agent does not know is skipped.
        """
        kind = command.WhichOneof("command")
        if kind == "cancel":
            self._cancel(command)
        if kind != "submit":
            return
        request_id = command.submit.request_id
        try:
            self._submit(command)
        except ShoalError as error:
            self._fail((request_id,), error)

    def take_frame(self, frame: pb.InferenceFrame) -> None:
        """Forward one engine step; updates that have no reader are left out."""
        if any(update.request_id not in self._ledger for update in frame.updates):
            frame = self._without_orphans(frame)
        for update in frame.updates:
            if update.HasField("finished") or update.HasField("failed"):
                self._end(update)
        if frame.HasField("load"):
            self._charging.engine_load(frame.load)
        if frame.updates or frame.HasField("load"):
            self._send_frame(frame)

    def fail_model(self, model: str, message: str) -> None:
        """Fail what ran in an engine that is gone."""
        error = ShoalError(Reason.ENGINE_CRASHED, message)
        lost = self._ledger.close_model(model)
        self._charging.dropped(lost)
        self._fail(lost, error)

    def cancel_all(self) -> None:
        """Stop everything that runs; nobody waits for it any more."""
        running = self._ledger.close_all()
        self._charging.dropped(running)
        for request_id, model in running.items():
            engine = self._find_engine(model)
            if engine is not None:
                cancel = pb.CancelRequest(request_id=request_id)
                engine.send(pb.InferenceCommand(cancel=cancel))

    def _submit(self, command: pb.InferenceCommand) -> None:
        request = command.submit
        engine = self._find_engine(request.model)
        if engine is None:
            raise ShoalError(
                Reason.MODEL_NOT_FOUND,
                f"this device does not serve the model {request.model!r}",
                param="model",
            )
        self._ledger.open(request.request_id, request.model)
        self._charging.begun(request.request_id)
        if not engine.send(command):
            self._ledger.close(request.request_id)
            self._charging.dropped((request.request_id,))
            raise _unavailable(engine.report)

    def _cancel(self, command: pb.InferenceCommand) -> None:
        model = self._ledger.close(command.cancel.request_id)
        self._charging.dropped((command.cancel.request_id,))
        engine = None if model is None else self._find_engine(model)
        if engine is not None:
            engine.send(command)

    def _end(self, update: pb.SequenceUpdate) -> None:
        """The request is over; a finished one gets its joules before it goes up."""
        model = self._ledger.close(update.request_id)
        if model is not None and update.HasField("finished"):
            self._charging.finished(update.request_id, model, update.finished)
        else:
            self._charging.dropped((update.request_id,))

    def _fail(self, request_ids: tuple[str, ...], error: ShoalError) -> None:
        if request_ids:
            failed = error.to_wire()
            self._send_frame(
                pb.InferenceFrame(
                    updates=[
                        pb.SequenceUpdate(request_id=request_id, failed=failed)
                        for request_id in request_ids
                    ]
                )
            )

    def _without_orphans(self, frame: pb.InferenceFrame) -> pb.InferenceFrame:
        kept = pb.InferenceFrame(
            updates=[update for update in frame.updates if update.request_id in self._ledger]
        )
        if frame.HasField("load"):
            kept.load.CopyFrom(frame.load)
        return kept


def _unavailable(report: engine_pb2.ModelReport) -> ShoalError:
    """Why an engine took no command; both reasons send the request elsewhere."""
    if report.state == engine_pb2.MODEL_STATE_LOADING:
        message = f"the model {report.name!r} is being loaded"
        return ShoalError(Reason.OVERLOADED, message, param="model", retry_after_ms=1000)
    if report.state == engine_pb2.MODEL_STATE_READY:
        return ShoalError(Reason.OVERLOADED, "the engine reads no commands", retry_after_ms=1000)
    why = report.failure or "it is being restarted"
    return ShoalError(Reason.ENGINE_CRASHED, f"the engine of {report.name!r} does not serve: {why}")
