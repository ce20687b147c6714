"""Between the wire's messages and the cores' values; the only such place of the hub."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceState, DeviceView, ServedModel
from orchestrator.fleet.view_store import ModelLoad
from orchestrator.hub.active import ActiveRequest
from orchestrator.request import Objective, Privacy, RouteRequest, Slo, SloMiss
from orchestrator.routing.decision import Prediction
from orchestrator.routing.estimator import Outcome
from orchestrator.routing.prefixes import hints_of
from orchestrator.routing.record import Actual
from shoal.errors import ShoalError, invalid
from shoal.kv_fetch import parse_decision, restore_times
from shoal.openai.speculative import speculative_fields
from shoal.v1 import device_pb2, engine_pb2, fleet_pb2, inference_pb2

_PRIVACY = {
    inference_pb2.PRIVACY_UNSPECIFIED: Privacy.ANY,
    inference_pb2.PRIVACY_ANY: Privacy.ANY,
    inference_pb2.PRIVACY_LOCAL_PREFERRED: Privacy.LOCAL_PREFERRED,
    inference_pb2.PRIVACY_LOCAL_ONLY: Privacy.LOCAL_ONLY,
}
_OBJECTIVE = {
    inference_pb2.OBJECTIVE_UNSPECIFIED: Objective.LATENCY,
    inference_pb2.OBJECTIVE_LATENCY: Objective.LATENCY,
    inference_pb2.OBJECTIVE_EDP: Objective.EDP,
    inference_pb2.OBJECTIVE_ENERGY: Objective.ENERGY,
}
_LOADING = (engine_pb2.MODEL_STATE_LOADING, engine_pb2.MODEL_STATE_RESTARTING)
_SLO_MISS = {
    inference_pb2.SLO_MISS_BEST_EFFORT: SloMiss.BEST_EFFORT,
    inference_pb2.SLO_MISS_REFUSE: SloMiss.REFUSE,
}


def route_request(request: inference_pb2.GenerateRequest) -> RouteRequest:
    """What placement depends on; raises ShoalError for what cannot be routed."""
    if not request.request_id:
        raise invalid("request_id", "request_id is empty; the gateway must set it")
    if not request.model:
        raise invalid("model", "model is empty; name one of GET /v1/models")
    hints = request.hints
    prompt = _prompt(request)
    return RouteRequest(
        request_id=request.request_id,
        tenant=request.tenant,
        model=request.model,
        prompt_bytes=len(prompt),
        max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
        slo=Slo(
            ttft_ms=hints.ttft_ms if hints.HasField("ttft_ms") else None,
            tpot_ms=hints.tpot_ms if hints.HasField("tpot_ms") else None,
        ),
        # A newer gateway's unknown privacy must not widen where a prompt travels.
        privacy=_PRIVACY.get(hints.privacy, Privacy.LOCAL_ONLY),
        objective=_OBJECTIVE.get(hints.objective, Objective.LATENCY),
        device_class=hints.device_class,
        device=hints.device,
        priority=hints.priority,
        deadline_unix_ms=request.deadline_unix_ms,
        prefix_hints=hints_of(prompt, request.tenant_salt),
        on_slo_miss=_SLO_MISS.get(hints.on_slo_miss, SloMiss.UNSTATED),
        tenant_weight=request.tenant_weight or 1.0,
        may_wait=not hints.no_waiting,
        hedge_after=hints.hedge_after if hints.HasField("hedge_after") else None,
    )


def _prompt(request: inference_pb2.GenerateRequest) -> bytes:
    """The prompt as bytes: prompts that begin alike have bytes that begin alike.

    A chat's framing counts as the template's text would, and tells no lengths: these differ
    between messages that begin alike. Token ids have no text; four bytes for each is usual
    for English.
    """
    match request.WhichOneof("prompt"):
        case "chat":
            parts = [request.chat.tools_json]
            for message in request.chat.messages:
                parts += (message.role, message.name, message.content)
            return "\0".join(parts).encode()
        case "text":
            return request.text.encode()
        case "tokens":
            return array("I", request.tokens.ids).tobytes()
    raise invalid("prompt", "the request has no prompt")


def device_view(
    device_id: DeviceId, name: str, state: DeviceState, hello: device_pb2.Hello
) -> DeviceView:
    """The device as its Hello describes it; raises ShoalError for an unknown device class."""
    report = hello.capabilities
    try:
        device_class = DeviceClass(report.device_class)
    except ValueError:
        known = ", ".join(DeviceClass)
        raise invalid(
            "device_class", f"device class {report.device_class!r} is not one of {known}"
        ) from None
    bandwidth = report.memory_bandwidth_gb_s
    return DeviceView(
        device_id=device_id,
        name=name,
        device_class=device_class,
        state=state,
        models={model.name: served_model(model) for model in hello.models},
        emulated=report.emulated,
        tdp_w=report.tdp_w if report.HasField("tdp_w") else None,
        memory_bandwidth_gb_s=bandwidth if report.HasField("memory_bandwidth_gb_s") else None,
    )


def served_model(report: engine_pb2.ModelReport) -> ServedModel:
    """One model of a device as its engine described it."""
    return ServedModel(
        name=report.name,
        fingerprint=report.fingerprint,
        num_parameters=report.num_parameters,
        context_tokens=report.context_tokens,
        slots=report.slots,
        prefill_tokens_per_s=report.prefill_tokens_per_s,
        decode_tokens_per_s=report.decode_tokens_per_s,
        decode_batch_tokens_per_s=tuple(report.decode_batch_tokens_per_s),
        size_bytes=report.size_bytes,
        kv_bytes_per_token=report.kv_bytes_per_token,
        ready=report.state == engine_pb2.MODEL_STATE_READY,
        loading=report.state in _LOADING,
        running=report.load.running,
        waiting=report.load.waiting,
        waiting_prefill_tokens=report.load.waiting_prefill_tokens,
        block_space=report.block_space,
        shared_bytes_per_s=_shared_bytes_per_s(report.load),
    )


def model_loads(engines: Iterable[inference_pb2.EngineLoad]) -> tuple[ModelLoad, ...]:
    """The queues that engines reported."""
    return tuple(
        ModelLoad(e.model, e.running, e.waiting, e.waiting_prefill_tokens, _shared_bytes_per_s(e))
        for e in engines
    )


def _shared_bytes_per_s(load: inference_pb2.EngineLoad) -> float:
    """0 as well when what the device said is no speed, or the tier is not in use just now."""
    counters = load.counters
    speed = counters.get("kv_shared_bytes_per_s", 0.0)
    usable = math.isfinite(speed) and speed > 0 and not counters.get("kv_shared_open", 0.0)
    return speed if usable else 0.0


def placed(
    device: DeviceView, prediction: Prediction | None, reason: str, attempt: int
) -> inference_pb2.Placed:
    """Where a request was sent and why, for its gateway."""
    message = inference_pb2.Placed(
        device_id=device.device_id,
        device_name=device.name,
        device_class=device.device_class.value,
        reason=reason,
        attempt=attempt,
        emulated=device.emulated,
    )
    if prediction is not None:
        message.predicted_ttft_ms = prediction.ttft_ms
        message.predicted_tpot_ms = prediction.tpot_ms
        if prediction.joules is not None:
            message.predicted_j = prediction.joules
    return message


def failed(request_id: str, error: ShoalError) -> inference_pb2.SequenceUpdate:
    """The end of a request that failed."""
    return inference_pb2.SequenceUpdate(request_id=request_id, failed=error.to_wire())


def actual(finished: inference_pb2.Finished) -> Actual:
    """What the engine measured of a finished request."""
    usage, timings = finished.usage, finished.timings
    joules = timings.joules if timings.HasField("joules") else None
    return Actual(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        queue_ms=timings.queue_ms,
        ttft_ms=timings.ttft_ms,
        tpot_ms=timings.tpot_ms,
        joules=joules,
        joules_estimated=timings.joules_estimated,
        total_ms=timings.total_ms,
        edp_js=None if joules is None else joules * timings.total_ms / 1000,
        kv_fetch=parse_decision(timings.kv_decision),
        kv_restore_ms=restore_times(timings.kv_restore_ms),
        speculative=speculative_fields(finished).get("speculative"),
    )


def outcome(active: ActiveRequest, finished: inference_pb2.Finished) -> Outcome:
    """What the router learns from a finished request."""
    measured = actual(finished)
    route, prediction = active.route, active.prediction
    return Outcome(
        device_id=active.device_id,
        model=route.model,
        prompt_bytes=route.prompt_bytes,
        prompt_tokens=measured.prompt_tokens,
        cached_tokens=measured.cached_tokens,
        completion_tokens=measured.completion_tokens,
        queue_ms=measured.queue_ms,
        ttft_ms=measured.ttft_ms,
        tpot_ms=measured.tpot_ms,
        mean_batch=float(finished.timings.mean_batch),
        joules=measured.joules,
        joules_estimated=measured.joules_estimated,
        predicted_cached_tokens=prediction.cached_tokens if prediction else 0,
        ahead_tokens=active.ahead_tokens,
        ahead_requests=active.ahead_requests,
        prefix_hints=route.prefix_hints,
    )


def model_summaries(
    devices: Iterable[DeviceView],
) -> tuple[list[fleet_pb2.ModelSummary], dict[str, list[DeviceView]]]:
    """What READY devices serve, by model name; and those of a model that have a free slot."""
    summaries: dict[str, fleet_pb2.ModelSummary] = {}
    with_room: dict[str, list[DeviceView]] = {}
    for device in devices:
        if device.state is not DeviceState.READY:
            continue
        for model in device.models.values():
            if not model.ready and not model.unwell:
                continue
            summary = summaries.get(model.name)
            if summary is None:
                summary = summaries[model.name] = fleet_pb2.ModelSummary(
                    name=model.name,
                    num_parameters=model.num_parameters,
                    fingerprint=model.fingerprint,
                )
                with_room[model.name] = []
            if model.ready:
                summary.ready_devices += 1
                num_free = model.slots - device.in_flight.get(model.name, 0)
                if num_free > 0:
                    summary.free_slots += num_free
                    with_room[model.name].append(device)
            summary.context_tokens = max(summary.context_tokens, model.context_tokens)
            if device.device_class.value not in summary.device_classes:
                summary.device_classes.append(device.device_class.value)
    return [summaries[name] for name in sorted(summaries)], with_room
