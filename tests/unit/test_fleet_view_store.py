"""The view store: values that do not change, reservations that add up, who has room."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.fleet.view import (
    DeviceClass,
    DeviceId,
    DeviceState,
    DeviceView,
    FleetView,
    ServedModel,
    ServingIndex,
    Unwell,
)
from orchestrator.fleet.view_store import ModelLoad, Reservation, ViewStore

MODEL = ServedModel("m", "f", 1, 128, 2, 1.0, 1.0)


def view(name: str) -> DeviceView:
    return DeviceView(DeviceId(name), name, DeviceClass.GPU, DeviceState.READY, models={"m": MODEL})


def test_a_change_shows_at_once_and_leaves_other_devices_as_they_are() -> None:
    store = ViewStore()
    store.put(view("a"))
    store.put(view("b"))
    devices, version = store.fleet.devices, store.version
    before_a, before_b = devices[DeviceId("a")], devices[DeviceId("b")]
    store.set_state(DeviceId("a"), DeviceState.SUSPECT)
    assert before_a.state is DeviceState.READY
    assert devices[DeviceId("a")].state is DeviceState.SUSPECT
    assert devices[DeviceId("b")] is before_b
    assert store.version > version


def test_reported_load_shows_on_the_model_and_unknown_models_are_ignored() -> None:
    store = ViewStore()
    store.put(view("a"))
    store.set_loads(DeviceId("a"), (ModelLoad("m", 3, 2, 700), ModelLoad("x", 1, 1, 1)))
    models = store.fleet.devices[DeviceId("a")].models
    assert (models["m"].running, models["m"].waiting_prefill_tokens) == (3, 700)
    assert set(models) == {"m"}


def test_reservations_outlast_a_new_hello() -> None:
    store = ViewStore()
    store.put(view("a"))
    store.reserve(Reservation(DeviceId("a"), "m", 50))
    store.put(view("a"))
    device = store.fleet.devices[DeviceId("a")]
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
    device = store.fleet.devices[DeviceId("a")]
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
    for device in store.fleet.devices.values():
        assert device.in_flight == {}
        assert device.in_flight_prefill_tokens == {}


def one_step(store: ViewStore, held: list[Reservation], step: tuple[str, str, int]) -> None:
    what, name, number = step
    device_id = DeviceId(name)
    match what:
        case "put":
            names = ("m", "n")[: 1 + number % 2]
            device_class = (DeviceClass.GPU, DeviceClass.NPU)[number // 2 % 2]
            models = {each: replace(MODEL, name=each) for each in names}
            store.put(replace(view(name), device_class=device_class, models=models, max_waiting=1))
        case "remove":
            store.remove(device_id)
        case "state":
            store.set_state(device_id, list(DeviceState)[number % len(DeviceState)])
        case "load":
            store.set_loads(device_id, (ModelLoad("m", number % 5, 0, 0),))
        case "unwell":
            store.set_unwell(device_id, "m", Unwell("slow") if number % 2 else None)
        case "reserve":
            held.append(Reservation(device_id, "m", number))
            store.reserve(held[-1])
        case "release" if held:
            store.release(held.pop(number % len(held)), prefill_ended=False)


STEPS = ("put", "put", "remove", "state", "load", "unwell", "reserve", "release")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("abc"), st.integers(1, 20))))
def test_who_serves_and_who_has_room_is_what_the_devices_say(
    steps: list[tuple[str, str, int]],
) -> None:
    store, held = ViewStore(), list[Reservation]()
    for step in steps:
        one_step(store, held, step)
        fresh = FleetView(dict(store.fleet.devices)).serving
        for model in ("m", "n"):
            assert _members(store.fleet.serving, model) == _members(fresh, model)


def _members(serving: ServingIndex, model: str) -> dict[str, tuple[list[str], list[str]]]:
    return {
        device_class: (sorted(group.all.ids), sorted(group.open.ids))
        for device_class, group in serving.groups(model).items()
    }
