"""Models of a cloud node that devices draft for: the way out of their drafts is a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.dispatch.backend import Account, Generation
from orchestrator.dispatch.edge import EdgeBackend
from orchestrator.dispatch.outbound import OutboundGate, OutboundPass, checked
from orchestrator.dispatch.speculative_models import FALLBACKS, DraftedModel
from shoal.errors import ShoalError
from shoal.http.generation import failed_update
from shoal.v1 import inference_pb2 as pb


def by_name(models: Sequence[DraftedModel]) -> Mapping[str, DraftedModel]:
    """Drafted models by what clients ask for."""
    return {model.name: model for model in models}


def drafting_request(outbound: OutboundPass, model: DraftedModel) -> pb.GenerateRequest:
    """What a device is sent: only what a pass lets out names a verifier."""
    request = checked(outbound)
    request.model = model.draft
    request.speculation.verifier = model.verifier
    request.speculation.target = model.name
    request.speculation.fallback = FALLBACKS[model.fallback]
    request.speculation.timeout_ms = round(model.timeout_s * 1e3)
    return request


class DraftedGeneration:
    """A sequence that a device drafts; asks the gate first, and fails as the gate does."""

    tier = "edge"

    def __init__(
        self,
        edge: EdgeBackend,
        gate: OutboundGate,
        request: pb.GenerateRequest,
        model: DraftedModel,
    ) -> None:
        self.account = Account()
        self._edge = edge
        self._gate = gate
        self._request = request
        self._model = model
        self._running: Generation | None = None
        self._cancelled = False

    async def take(self) -> Sequence[pb.SequenceUpdate]:
        """See `Generation.take`."""
        if self._running is None:
            try:
                outbound = await self._gate.admit(self._request)
            except ShoalError as error:
                return [failed_update(self._request.request_id, error)]
            self._running = self._edge.start(drafting_request(outbound, self._model))
            if self._cancelled:
                self._running.cancel()
        return await self._running.take()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._cancelled = True
        if self._running is not None:
            self._running.cancel()
