"""Live audits: the cloud is asked for some answers that the edge was sure of."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import structlog

from orchestrator.dispatch.cascade.agreement import AGREES_FROM, overlap
from orchestrator.dispatch.cascade.legs import Leg
from orchestrator.dispatch.cloud import CloudBackend
from shoal.v1 import inference_pb2 as pb

_log = structlog.get_logger(__name__)

# An audit that takes longer tells of the endpoint, not of the answer.
_LIMIT_S = 120.0
# More at once would compete with clients for the endpoint.
_MAX_AT_ONCE = 4


@dataclass(slots=True)
class AuditTotals:
    """Of one policy: how audits ended, and the sum of the overlaps of those that were answered.

    Ends: `agree`, `disagree`, `failed` (the endpoint), `refused` (privacy or budget), `skipped`.
    """

    ends: Counter[str] = field(default_factory=Counter)
    overlap_sum: float = 0.0


class Audits:
    """Runs audits in the background. Both texts are in memory only, until it is done."""

    def __init__(self, cloud: CloudBackend) -> None:
        self.totals: dict[str, AuditTotals] = {}
        self._cloud = cloud
        self._num_running = 0

    def begin(self, policy: str, model: str, request: pb.GenerateRequest, edge_text: str) -> None:
        """Ask the cloud the same; its gate and the tenant's budget have the last word."""
        totals = self.totals.setdefault(policy, AuditTotals())
        if self._num_running >= _MAX_AT_ONCE:
            totals.ends["skipped"] += 1
            return
        asked = pb.GenerateRequest()
        asked.CopyFrom(request)
        asked.model = model
        asked.request_id = request.request_id + ".audit"
        asked.deadline_unix_ms = 0
        self._num_running += 1
        self._cloud.in_background(self._run(totals, asked, edge_text))

    async def _run(self, totals: AuditTotals, request: pb.GenerateRequest, edge_text: str) -> None:
        generation = self._cloud.start(request, patient=False)
        leg = Leg(generation, request.model, request.request_id)
        try:
            async with asyncio.timeout(_LIMIT_S):
                while not leg.ended:
                    await leg.take()
        except TimeoutError:
            pass
        finally:
            self._num_running -= 1
            leg.generation.cancel()
        end = _end_of(leg)
        if end == "answered":
            shared = overlap(edge_text, leg.text)
            totals.overlap_sum += shared
            end = "agree" if shared >= AGREES_FROM else "disagree"
        totals.ends[end] += 1
        _log.info("cascade_audited", request_id=request.request_id, outcome=end)


def _end_of(leg: Leg) -> str:
    if leg.finished is not None:
        return "answered"
    refused = leg.failed_code in ("budget_exceeded", "permission_denied", "no_device")
    return "refused" if refused else "failed"
