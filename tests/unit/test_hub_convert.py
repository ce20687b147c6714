"""What the wire says becomes what the cores mean."""

from __future__ import annotations

from typing import cast

import pytest

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceState
from orchestrator.hub import convert
from orchestrator.hub.active import ActiveRequest
from orchestrator.hub.session import GatewaySession
from orchestrator.request import Objective, Privacy, RouteRequest, SloMiss
from orchestrator.routing.decision import Prediction
from shoal.errors import Reason, ShoalError
from shoal.v1 import device_pb2, engine_pb2, inference_pb2
from tests.harness.hub_rig import MODEL, finished, model_report

ROUTED = {"request_id": "r", "model": MODEL}


def hello(**report: object) -> device_pb2.Hello:
    capabilities = device_pb2.CapabilityReport(**{"device_class": "gpu", **report})
    return device_pb2.Hello(capabilities=capabilities, models=[model_report()])


def test_absent_hints_mean_no_objective_was_stated() -> None:
    route = convert.route_request(inference_pb2.GenerateRequest(**ROUTED, text="hi"))
    assert route.max_tokens is None
    assert route.slo.ttft_ms is None
    assert route.slo.tpot_ms is None
    assert route.privacy is Privacy.ANY
    assert route.objective is Objective.LATENCY


def test_stated_hints_are_taken_over() -> None:
    hints = inference_pb2.RoutingHints(
        ttft_ms=900,
        tpot_ms=50,
        privacy=inference_pb2.PRIVACY_LOCAL_PREFERRED,
        device_class="npu",
        device="pi",
        priority=3,
        objective=inference_pb2.OBJECTIVE_EDP,
    )
    request = inference_pb2.GenerateRequest(**ROUTED, text="hi", hints=hints, max_tokens=7)
    route = convert.route_request(request)
    assert (route.slo.ttft_ms, route.slo.tpot_ms) == (900, 50)
    assert route.privacy is Privacy.LOCAL_PREFERRED
    assert route.objective is Objective.EDP
    assert (route.device_class, route.device, route.priority) == ("npu", "pi", 3)
    assert route.max_tokens == 7


def test_privacy_of_a_newer_gateway_keeps_the_prompt_local() -> None:
    request = inference_pb2.GenerateRequest(**ROUTED, text="hi")
    request.hints.privacy = 99  # type: ignore[assignment]
    assert convert.route_request(request).privacy is Privacy.LOCAL_ONLY


def test_prompt_size_is_in_utf8_bytes() -> None:
    request = inference_pb2.GenerateRequest(**ROUTED, text="é" * 10)
    assert convert.route_request(request).prompt_bytes == 20
    ids = inference_pb2.TokenPrompt(ids=[1, 2, 3])
    request = inference_pb2.GenerateRequest(**ROUTED, tokens=ids)
    assert convert.route_request(request).prompt_bytes == 12
    message = inference_pb2.ChatMessage(role="user", content="x" * 100)
    chat = inference_pb2.ChatPrompt(messages=[message])
    request = inference_pb2.GenerateRequest(**ROUTED, chat=chat)
    assert 100 < convert.route_request(request).prompt_bytes < 120


@pytest.mark.parametrize("missing", ["request_id", "model", "prompt"])
def test_what_cannot_be_routed_is_refused_by_name(missing: str) -> None:
    fields = {**ROUTED, "text": "hi"}
    del fields["text" if missing == "prompt" else missing]
    with pytest.raises(ShoalError) as refusal:
        convert.route_request(inference_pb2.GenerateRequest(**fields))
    assert refusal.value.reason is Reason.INVALID_ARGUMENT
    assert refusal.value.param == missing


def test_device_view_distinguishes_unmeasured_from_zero() -> None:
    view = convert.device_view(DeviceId("d"), "pi", DeviceState.READY, hello(tdp_w=20))
    assert view.device_class is DeviceClass.GPU
    assert view.tdp_w == 20
    assert view.memory_bandwidth_gb_s is None
    assert view.power_w is None
    assert view.models[MODEL].decode_batch_tokens_per_s == (80, 120, 160)


def test_only_a_ready_model_counts_as_ready() -> None:
    report = model_report()
    for state in engine_pb2.ModelState.values():
        report.state = state
        ready = state == engine_pb2.MODEL_STATE_READY
        assert convert.served_model(report).ready is ready


def test_placed_leaves_out_what_was_not_predicted() -> None:
    view = convert.device_view(DeviceId("d"), "pi", DeviceState.READY, hello(emulated=True))
    prediction = Prediction(
        ttft_ms=5, tpot_ms=2, joules=None, joules_estimated=True, prompt_tokens=3
    )
    placed = convert.placed(view, prediction, "why", 2)
    assert placed.predicted_ttft_ms == 5
    assert not placed.HasField("predicted_j")
    assert (placed.attempt, placed.emulated, placed.reason) == (2, True, "why")
    assert not convert.placed(view, None, "why", 1).HasField("predicted_ttft_ms")


def test_absent_joules_stay_unknown() -> None:
    end = finished("r").finished
    route = convert.route_request(inference_pb2.GenerateRequest(**ROUTED, text="hi"))
    assert convert.actual(end).joules is None
    active = active_request(route)
    assert convert.outcome(active, end).joules is None
    end.timings.joules = 2.5
    end.timings.total_ms = 2000
    assert convert.actual(end).edp_js == 5.0
    assert convert.outcome(active, end).joules == 2.5


@pytest.mark.parametrize("kind", ["chat", "text", "tokens"])
def test_prompts_that_begin_alike_share_their_first_prefix_hints(kind: str) -> None:
    def hints(ending: str, salt: bytes = b"s") -> tuple[int, ...]:
        request = inference_pb2.GenerateRequest(**ROUTED, tenant_salt=salt)
        if kind == "chat":
            request.chat.messages.add(role="system", content="long " * 200)
            request.chat.messages.add(role="user", content=ending * 1000)
        elif kind == "text":
            request.text = "long " * 200 + ending * 1000
        else:
            request.tokens.ids.extend([7] * 250 + [ord(ending[0])] * 1000)
        return convert.route_request(request).prefix_hints

    first, second = hints("a"), hints("b")
    assert first[0] == second[0]
    assert first[-1] != second[-1]
    assert hints("a", b"other tenant")[0] != first[0]


def test_messages_of_other_lengths_that_begin_alike_share_their_first_prefix_hints() -> None:
    def hints(ending: str) -> tuple[int, ...]:
        request = inference_pb2.GenerateRequest(**ROUTED)
        request.chat.messages.add(role="user", content="long " * 190 + ending)
        return convert.route_request(request).prefix_hints

    assert hints("and a question") == hints("and another question")


def active_request(route: RouteRequest) -> ActiveRequest:
    """A request in the middle of its life; its session is not looked at."""
    return ActiveRequest(route, cast(GatewaySession, None), None, 0.0, device_id=DeviceId("d"))


def test_summaries_count_only_ready_devices_with_ready_models() -> None:
    ready = convert.device_view(DeviceId("a"), "a", DeviceState.READY, hello())
    away = convert.device_view(DeviceId("b"), "b", DeviceState.SUSPECT, hello())
    loading = hello()
    loading.models[0].state = engine_pb2.MODEL_STATE_LOADING
    starting = convert.device_view(DeviceId("c"), "c", DeviceState.READY, loading)
    (summary,), with_room = convert.model_summaries([ready, away, starting])
    assert with_room == {summary.name: [ready]}
    assert (summary.ready_devices, summary.free_slots) == (1, 4)
    assert list(summary.device_classes) == ["gpu"]


def test_what_the_client_wants_when_the_objective_is_missed_reaches_the_router() -> None:
    message = inference_pb2.GenerateRequest(request_id="r", model="m", text="hello")
    route = convert.route_request(message)
    assert (route.on_slo_miss, route.tenant_weight, route.may_wait) == (SloMiss.UNSTATED, 1, True)
    message.hints.on_slo_miss = inference_pb2.SLO_MISS_REFUSE
    message.hints.no_waiting = True
    message.tenant_weight = 2.5
    route = convert.route_request(message)
    assert (route.on_slo_miss, route.tenant_weight, route.may_wait) == (SloMiss.REFUSE, 2.5, False)
