"""Between the agent's values and the wire's messages."""

from __future__ import annotations

from collections.abc import Iterable

from agent.hardware.load import LoadSample
from agent.hardware.report import Capabilities
from agent.kv.sharing import FAULTS, NotShared
from agent.session import connection
from agent.session.rejection import RejectReason
from agent.session.supervision import EngineState
from shoal.v1 import device_pb2 as pb
from shoal.v1 import engine_pb2, inference_pb2
from shoal.wire import agree_on_protocol

_SHARING = "kv_sharing_"
# The condition of a device whose user the shared tier does not know.
CACHE_REFUSES_US = f"{_SHARING}{NotShared.AUTH_FAILED}"

_MODEL_STATES = {
    EngineState.IDLE: engine_pb2.MODEL_STATE_LOADING,
    EngineState.STARTING: engine_pb2.MODEL_STATE_LOADING,
    EngineState.READY: engine_pb2.MODEL_STATE_READY,
    EngineState.KILLING: engine_pb2.MODEL_STATE_RESTARTING,
    EngineState.BACKING_OFF: engine_pb2.MODEL_STATE_RESTARTING,
    EngineState.FAILED: engine_pb2.MODEL_STATE_FAILED,
    EngineState.STOPPING: engine_pb2.MODEL_STATE_UNLOADED,
    EngineState.STOPPED: engine_pb2.MODEL_STATE_UNLOADED,
}
_REJECT_REASONS = {
    pb.Reject.REASON_PROTOCOL: RejectReason.PROTOCOL,
    pb.Reject.REASON_REVOKED: RejectReason.REVOKED,
    pb.Reject.REASON_UNKNOWN_DEVICE: RejectReason.UNKNOWN_DEVICE,
    pb.Reject.REASON_REPLACED: RejectReason.REPLACED,
    pb.Reject.REASON_BAD_FRAME: RejectReason.BAD_FRAME,
    pb.Reject.REASON_SHUTTING_DOWN: RejectReason.SHUTTING_DOWN,
}


def model_state(state: EngineState) -> engine_pb2.ModelState:
    """The wire's name for where an engine stands."""
    return _MODEL_STATES[state]


def welcomed(message: pb.Welcome) -> connection.Welcomed | connection.Rejected:
    """The event that a Welcome is; one in a protocol that we do not speak is a refusal."""
    if agree_on_protocol(message.protocol, message.protocol) is None:
        return connection.Rejected(
            RejectReason.PROTOCOL, f"the hub chose protocol {message.protocol}"
        )
    return connection.Welcomed(
        epoch=message.epoch,
        heartbeat_interval_s=message.heartbeat_interval_ms / 1000,
        lease_s=message.lease_ms / 1000,
    )


def acknowledged(message: pb.HeartbeatAck) -> connection.Acknowledged:
    """The event that a heartbeat's answer is."""
    return connection.Acknowledged(message.next_interval_ms / 1000, message.lease_ms / 1000)


def rejected(message: pb.Reject) -> connection.Rejected:
    """The event that a Reject is; a newer hub's unknown reason is one to retry."""
    reason = _REJECT_REASONS.get(message.reason, RejectReason.OTHER)
    return connection.Rejected(reason, message.message)


def capability_report(capabilities: Capabilities) -> pb.CapabilityReport:
    """The report of the Hello; what is not known stays absent."""
    report = pb.CapabilityReport(
        hostname=capabilities.hostname,
        device_class=capabilities.device_class,
        emulated=capabilities.emulated,
        detected_class=capabilities.detected_class,
        os=capabilities.os,
        architecture=capabilities.architecture,
        cpu_model=capabilities.cpu_model,
        cores=capabilities.cores,
        cpu_features=capabilities.cpu_features,
        memory_bytes=capabilities.memory_bytes,
        power_source=capabilities.power_source,
        power_meters=capabilities.power_meters,
        labels=capabilities.labels,
        notes=capabilities.notes,
    )
    if capabilities.memory_bandwidth_gb_s is not None:
        report.memory_bandwidth_gb_s = capabilities.memory_bandwidth_gb_s
    if capabilities.tdp_w is not None:
        report.tdp_w = capabilities.tdp_w
    for accelerator in capabilities.accelerators:
        report.accelerators.add(
            kind=accelerator.kind,
            vendor=accelerator.vendor,
            model=accelerator.model,
            memory_bytes=accelerator.memory_bytes,
            unified_memory=accelerator.unified_memory,
            served_by=accelerator.served_by,
        )
    return report


def device_load(sample: LoadSample) -> pb.DeviceLoad:
    """The device's part of a heartbeat; a missing sensor stays absent."""
    load = pb.DeviceLoad(
        cpu_percent=sample.cpu_percent,
        memory_available_bytes=sample.memory_available_bytes,
        memory_total_bytes=sample.memory_total_bytes,
        swap_used_bytes=sample.swap_used_bytes,
        swapped_pages=sample.swapped_pages,
        process_swap_bytes=sample.process_swap_bytes,
        process_rss_bytes=sample.process_rss_bytes,
        conditions=sample.conditions,
    )
    if sample.power_w is not None:
        load.power_w = sample.power_w
    if sample.temperature_c is not None:
        load.temperature_c = sample.temperature_c
    return load


def sharing_conditions(engines: Iterable[inference_pb2.EngineLoad]) -> list[str]:
    """Named conditions of a device whose KV blocks should be shared and are not."""
    reasons = {engine.kv_sharing.not_shared for engine in engines}
    return [f"{_SHARING}{reason}" for reason in sorted(reasons & FAULTS)]
