"""Which hub gets a request, from what the hubs say of themselves: pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.v1 import fleet_pb2
from shoal.v1 import inference_pb2 as pb

# Hubs whose best device is at most this much slower than the fastest hub's are as good.
_AS_GOOD = 1.25
# A usual answer's length: weighs a hub's time per token against its time to the first.
_USUAL_TOKENS = 64
_KEY_BYTES = 2_048


@dataclass(frozen=True, slots=True)
class HubOffer:
    """What one connected hub has for one request. Times in ms; 0: the hub does not say."""

    hub_id: str
    ready_devices: int
    # Without what was sent there since it said so.
    free_slots: int
    waiting: int
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0

    @property
    def answer_ms(self) -> float:
        """How long the best device with room takes for a usual answer."""
        return self.ttft_ms + _USUAL_TOKENS * self.tpot_ms


def offer_of(
    summary: fleet_pb2.HubSummary | None, request: pb.GenerateRequest, num_sent: int
) -> HubOffer:
    """The hub's offer; `num_sent`: requests sent there since the summary."""
    summary = summary or fleet_pb2.HubSummary()
    wanted = request.hints.device_class
    for model in summary.models:
        if model.name == request.model and wanted in ("", *model.device_classes):
            return HubOffer(
                summary.hub_id,
                model.ready_devices,
                max(0, model.free_slots - num_sent),
                summary.waiting + num_sent,
                model.expected_ttft_ms,
                model.expected_tpot_ms,
            )
    return HubOffer(summary.hub_id, 0, 0, summary.waiting + num_sent)


def best_offer(offers: Sequence[HubOffer], key: bytes) -> int:
    """Index of the hub to send to; there must be one.

    Of the hubs with room those whose best device is about as fast as the fastest; among
    these each conversation (`key`) keeps to one, so that its prompt's beginning is found
    there again, in proportion to their room. Where nobody has room: the shortest line.
    """
    serving = [i for i, offer in enumerate(offers) if offer.ready_devices]
    free = [i for i in serving if offers[i].free_slots]
    if not free:
        order = serving or range(len(offers))
        return min(order, key=lambda i: offers[i].waiting / max(1, offers[i].ready_devices))
    fastest_ms = min(offers[i].answer_ms for i in free)
    near = [i for i in free if offers[i].answer_ms <= _AS_GOOD * fastest_ms]
    return max(near, key=lambda i: _pull(offers[i], key))


def conversation_key(request: pb.GenerateRequest) -> bytes:
    """The same for all turns of a conversation: its tenant and how it begins."""
    match request.WhichOneof("prompt"):
        case "chat":
            begin = "\n".join(message.content for message in request.chat.messages[:2]).encode()
        case "text":
            begin = request.text.encode()
        case _:
            begin = request.tokens.SerializeToString()
    return f"{request.tenant} {request.model} ".encode() + begin[:_KEY_BYTES]


def _pull(offer: HubOffer, key: bytes) -> float:
    """Weighted rendezvous: of many keys the share with the largest is in proportion to room."""
    digest = hashlib.blake2b(offer.hub_id.encode() + b" " + key, digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 1) / (2**64 + 1)
    return -offer.free_slots / math.log(uniform)
