"""Which hub a request goes to."""

from __future__ import annotations

from collections import Counter

from orchestrator.dispatch.hub_choice import HubOffer, best_offer, conversation_key, offer_of
from shoal.v1 import fleet_pb2
from shoal.v1 import inference_pb2 as pb

MODEL = "m"


def offer(
    hub_id: str, free: int, *, devices: int = 1, waiting: int = 0, tpot_ms: float = 0.0
) -> HubOffer:
    return HubOffer(hub_id, devices, free, waiting, tpot_ms=tpot_ms)


def test_hub_without_the_model_is_left_out() -> None:
    assert best_offer([offer("a", 0, devices=0), offer("b", 1)], b"k") == 1


def test_hub_with_a_free_slot_comes_before_one_with_many_devices() -> None:
    assert best_offer([offer("a", 0, devices=50), offer("b", 1)], b"k") == 1


def test_fast_hub_gets_the_requests_while_it_has_room() -> None:
    offers = [offer("slow", 8, tpot_ms=100), offer("fast", 1, tpot_ms=20)]
    assert {best_offer(offers, bytes([i])) for i in range(50)} == {1}


def test_conversations_spread_by_room_and_each_keeps_its_hub() -> None:
    offers = [offer("a", 30), offer("b", 10)]
    chosen = [best_offer(offers, f"conversation {i}".encode()) for i in range(400)]
    assert 260 < Counter(chosen)[0] < 340
    assert chosen == [best_offer(offers, f"conversation {i}".encode()) for i in range(400)]


def test_without_room_the_shortest_line_for_each_device_is_chosen() -> None:
    offers = [offer("a", 0, devices=1, waiting=5), offer("b", 0, devices=10, waiting=20)]
    assert best_offer(offers, b"k") == 1


def test_what_was_sent_since_the_summary_is_taken_off_its_room() -> None:
    summary = fleet_pb2.HubSummary(hub_id="a", waiting=1)
    summary.models.add(name=MODEL, ready_devices=1, free_slots=4, device_classes=["gpu"])
    request = pb.GenerateRequest(model=MODEL)
    assert offer_of(summary, request, 3) == HubOffer("a", 1, 1, 4)
    assert offer_of(summary, request, 9).free_slots == 0
    request.hints.device_class = "npu"
    assert offer_of(summary, request, 0).ready_devices == 0


def test_turns_of_a_conversation_have_one_key_and_tenants_another() -> None:
    first, later = pb.GenerateRequest(tenant="t", model=MODEL), pb.GenerateRequest()
    for text in ("You are terse.", "Name a fish."):
        first.chat.messages.add(role="user", content=text)
    later.CopyFrom(first)
    later.chat.messages.add(role="assistant", content="Cod.")
    assert conversation_key(first) == conversation_key(later)
    later.tenant = "u"
    assert conversation_key(first) != conversation_key(later)
