"""Requests that the hub makes up to see whether a device on trial serves its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.fleet.view import DeviceId
from orchestrator.hub.connection import DeviceConnection
from shoal.v1 import device_pb2, inference_pb2

# An answer that does not come, or a refusal, is asked for again after this.
ASK_AGAIN_MS = 15_000.0


class Proofs:
    """One token of each model, asked for down the device's own stream."""

    def __init__(self, send: Callable[[DeviceId, device_pb2.HubFrame], int | None]) -> None:
        self._send = send
        # By request id: device, epoch and model, and when it was asked.
        self._asked: dict[str, tuple[tuple[DeviceId, int, str], float]] = {}
        self._answered: set[tuple[DeviceId, int, str]] = set()
        self._num_asked = 0

    def ask(self, connection: DeviceConnection, models: Sequence[str], now_ms: float) -> None:
        """Ask for a token of each model that gave none on this connection, unless it is asked."""
        recent = {key for key, asked in self._asked.values() if now_ms - asked < ASK_AGAIN_MS}
        for model in models:
            key = (connection.device_id, connection.epoch, model)
            if key not in self._answered and key not in recent:
                self._num_asked += 1
                request_id = f"shoal-proof-{self._num_asked}"
                command = inference_pb2.InferenceCommand(submit=_request(request_id, model))
                frame = device_pb2.HubFrame(inference=command)
                if self._send(connection.device_id, frame) is not None:
                    self._asked[request_id] = (key, now_ms)

    def hear(self, device_id: DeviceId, frame: inference_pb2.InferenceFrame) -> None:
        """A frame of a device: maybe an answer."""
        if not self._asked:
            return
        for update in frame.updates:
            asked = self._asked.get(update.request_id)
            if asked is not None and asked[0][0] == device_id and update.HasField("finished"):
                del self._asked[update.request_id]
                self._answered.add(asked[0])

    def hold(self, connection: DeviceConnection, models: Sequence[str]) -> bool:
        """Whether each model answered on this connection."""
        return all((connection.device_id, connection.epoch, m) in self._answered for m in models)

    def clear(self) -> None:
        """No rollout runs."""
        self._asked.clear()
        self._answered.clear()


def _request(request_id: str, model: str) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        model=model,
        tenant="shoal-probe",
        text="a",
        max_tokens=1,
        sampling=inference_pb2.Sampling(temperature=0.0),
    )
