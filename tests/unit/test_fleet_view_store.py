"""The view store: snapshots that do not change, reservations that add up."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.fleet.view import (
    DeviceClass,
    DeviceId,
    DeviceState,
    DeviceView,
    ServedModel,
)
from orchestrator.fleet.view_store import ModelLoad, Reservation, ViewStore

MODEL = ServedModel("m", "f", 1, 128, 2, 1.0, 1.0)


def view(name: str) -> DeviceView:
    return DeviceView(DeviceId(name), name, DeviceClass.GPU, DeviceState.READY, models={"m": MODEL})


def test_snapshot_does_not_change_and_shares_untouched_devices() -> None:
    store = ViewStore()
    store.put(view("a"))
    store.put(view("b"))
    before = store.snapshot()
    store.set_state(DeviceId("a"), DeviceState.SUSPECT)
    after = store.snapshot()
    assert before.devices[DeviceId("a")].state is DeviceState.READY
    assert after.devices[DeviceId("a")].state is DeviceState.SUSPECT
    assert after.devices[DeviceId("b")] is before.devices[DeviceId("b")]
    assert after.version > before.version


def test_snapshot_without_a_change_is_the_same_value() -> None:
    store = ViewStore()
    store.put(view("a"))
    assert store.snapshot() is store.snapshot()


def test_reported_load_shows_on_the_model_and_unknown_models_are_ignored() -> None:
    store = ViewStore()
    store.put(view("a"))
    store.set_loads(DeviceId("a"), (ModelLoad("m", 3, 2, 700), ModelLoad("x", 1, 1, 1)))
    models = store.snapshot().devices[DeviceId("a")].models
    assert (models["m"].running, models["m"].waiting_prefill_tokens) == (3, 700)
    assert set(models) == {"m"}


def test_reservations_outlast_a_new_hello() -> None:
    store = ViewStore()
    store.put(view("a"))
    store.reserve(Reservation(DeviceId("a"), "m", 50))
    store.put(view("a"))
    device = store.snapshot().devices[DeviceId("a")]
    assert device.in_flight == {"m": 1}
    assert device.in_flight_prefill_tokens == {"m": 50}


def test_prompt_tokens_are_given_back_once() -> None:
    store = ViewStore()
    store.put(view("a"))
    first, second = (Reservation(DeviceId("a"), "m", n) for n in (50, 70))
    store.reserve(first)
    store.reserve(second)
    store.end_prefill(first)
    store.release(first, prefill_ended=True)
    device = store.snapshot().devices[DeviceId("a")]
    assert device.in_flight_prefill_tokens == {"m": 70}
    store.release(second, prefill_ended=False)
    assert store.in_flight(DeviceId("a")) == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 99), st.booleans())))
def test_everything_reserved_and_released_leaves_nothing(
    requests: list[tuple[str, int, bool]],
) -> None:
    store = ViewStore()
    store.put(view("a"))
    store.put(view("b"))
    reservations = [Reservation(DeviceId(name), "m", tokens) for name, tokens, _ in requests]
    for reservation in reservations:
        store.reserve(reservation)
        store.check_integrity()
    for reservation, (_, _, prefilled) in zip(reservations, requests, strict=True):
        if prefilled:
            store.end_prefill(reservation)
        store.release(reservation, prefill_ended=prefilled)
        store.check_integrity()
    for device in store.snapshot().devices.values():
        assert device.in_flight == {}
        assert device.in_flight_prefill_tokens == {}
