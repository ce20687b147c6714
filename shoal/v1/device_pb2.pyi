from shoal.v1 import engine_pb2 as _engine_pb2
from shoal.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceFrame(_message.Message):
    __slots__ = ("epoch", "hello", "heartbeat", "inference", "model", "goodbye", "local_served", "upgrade_progress")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SERVED_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hello: Hello
    heartbeat: Heartbeat
    inference: _inference_pb2.InferenceFrame
    model: _engine_pb2.ModelReport
    goodbye: Goodbye
    local_served: LocalServed
    upgrade_progress: UpgradeProgress
    def __init__(self, epoch: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., inference: _Optional[_Union[_inference_pb2.InferenceFrame, _Mapping]] = ..., model: _Optional[_Union[_engine_pb2.ModelReport, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., local_served: _Optional[_Union[LocalServed, _Mapping]] = ..., upgrade_progress: _Optional[_Union[UpgradeProgress, _Mapping]] = ...) -> None: ...

class HubFrame(_message.Message):
    __slots__ = ("welcome", "reject", "heartbeat_ack", "inference", "load_model", "unload_model", "drain", "local_served_ack", "upgrade", "upgrade_verdict")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FIELD_NUMBER: _ClassVar[int]
    LOAD_MODEL_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SERVED_ACK_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_VERDICT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    reject: Reject
    heartbeat_ack: HeartbeatAck
    inference: _inference_pb2.InferenceCommand
    load_model: LoadModel
    unload_model: UnloadModel
    drain: Drain
    local_served_ack: LocalServedAck
    upgrade: Upgrade
    upgrade_verdict: UpgradeVerdict
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., reject: _Optional[_Union[Reject, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., inference: _Optional[_Union[_inference_pb2.InferenceCommand, _Mapping]] = ..., load_model: _Optional[_Union[LoadModel, _Mapping]] = ..., unload_model: _Optional[_Union[UnloadModel, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., local_served_ack: _Optional[_Union[LocalServedAck, _Mapping]] = ..., upgrade: _Optional[_Union[Upgrade, _Mapping]] = ..., upgrade_verdict: _Optional[_Union[UpgradeVerdict, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("min_protocol", "max_protocol", "agent_version", "capabilities", "models", "running_request_ids", "device_unix_ms", "installation", "last_epoch")
    MIN_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MAX_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    min_protocol: int
    max_protocol: int
    agent_version: str
    capabilities: CapabilityReport
    models: _containers.RepeatedCompositeFieldContainer[_engine_pb2.ModelReport]
    running_request_ids: _containers.RepeatedScalarFieldContainer[str]
    device_unix_ms: int
    installation: Installation
    last_epoch: int
    def __init__(self, min_protocol: _Optional[int] = ..., max_protocol: _Optional[int] = ..., agent_version: _Optional[str] = ..., capabilities: _Optional[_Union[CapabilityReport, _Mapping]] = ..., models: _Optional[_Iterable[_Union[_engine_pb2.ModelReport, _Mapping]]] = ..., running_request_ids: _Optional[_Iterable[str]] = ..., device_unix_ms: _Optional[int] = ..., installation: _Optional[_Union[Installation, _Mapping]] = ..., last_epoch: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "epoch", "heartbeat_interval_ms", "lease_ms", "hub_id", "hub_version", "cache_digest")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    HUB_ID_FIELD_NUMBER: _ClassVar[int]
    HUB_VERSION_FIELD_NUMBER: _ClassVar[int]
    CACHE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    epoch: int
    heartbeat_interval_ms: int
    lease_ms: int
    hub_id: str
    hub_version: str
    cache_digest: bytes
    def __init__(self, protocol: _Optional[int] = ..., epoch: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., hub_id: _Optional[str] = ..., hub_version: _Optional[str] = ..., cache_digest: _Optional[bytes] = ...) -> None: ...

class Reject(_message.Message):
    __slots__ = ("reason", "message")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Reject.Reason]
        REASON_PROTOCOL: _ClassVar[Reject.Reason]
        REASON_REVOKED: _ClassVar[Reject.Reason]
        REASON_UNKNOWN_DEVICE: _ClassVar[Reject.Reason]
        REASON_REPLACED: _ClassVar[Reject.Reason]
        REASON_BAD_FRAME: _ClassVar[Reject.Reason]
        REASON_SHUTTING_DOWN: _ClassVar[Reject.Reason]
    REASON_UNSPECIFIED: Reject.Reason
    REASON_PROTOCOL: Reject.Reason
    REASON_REVOKED: Reject.Reason
    REASON_UNKNOWN_DEVICE: Reject.Reason
    REASON_REPLACED: Reject.Reason
    REASON_BAD_FRAME: Reject.Reason
    REASON_SHUTTING_DOWN: Reject.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Reject.Reason
    message: str
    def __init__(self, reason: _Optional[_Union[Reject.Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("load", "engines", "device_unix_ms")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    load: DeviceLoad
    engines: _containers.RepeatedCompositeFieldContainer[_inference_pb2.EngineLoad]
    device_unix_ms: int
    def __init__(self, load: _Optional[_Union[DeviceLoad, _Mapping]] = ..., engines: _Optional[_Iterable[_Union[_inference_pb2.EngineLoad, _Mapping]]] = ..., device_unix_ms: _Optional[int] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("next_interval_ms", "lease_ms")
    NEXT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    next_interval_ms: int
    lease_ms: int
    def __init__(self, next_interval_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class DeviceLoad(_message.Message):
    __slots__ = ("cpu_percent", "memory_available_bytes", "memory_total_bytes", "swap_used_bytes", "swapped_pages", "process_swap_bytes", "process_rss_bytes", "power_w", "power_estimated", "temperature_c", "conditions")
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWAP_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_PAGES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SWAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    POWER_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    cpu_percent: float
    memory_available_bytes: int
    memory_total_bytes: int
    swap_used_bytes: int
    swapped_pages: int
    process_swap_bytes: int
    process_rss_bytes: int
    power_w: float
    power_estimated: bool
    temperature_c: float
    conditions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cpu_percent: _Optional[float] = ..., memory_available_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., swap_used_bytes: _Optional[int] = ..., swapped_pages: _Optional[int] = ..., process_swap_bytes: _Optional[int] = ..., process_rss_bytes: _Optional[int] = ..., power_w: _Optional[float] = ..., power_estimated: _Optional[bool] = ..., temperature_c: _Optional[float] = ..., conditions: _Optional[_Iterable[str]] = ...) -> None: ...

class CapabilityReport(_message.Message):
    __slots__ = ("hostname", "device_class", "emulated", "detected_class", "os", "architecture", "cpu_model", "cores", "cpu_features", "memory_bytes", "memory_bandwidth_gb_s", "power_source", "power_meters", "tdp_w", "accelerators", "labels", "notes")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    DETECTED_CLASS_FIELD_NUMBER: _ClassVar[int]
    OS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    CPU_FEATURES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BANDWIDTH_GB_S_FIELD_NUMBER: _ClassVar[int]
    POWER_SOURCE_FIELD_NUMBER: _ClassVar[int]
    POWER_METERS_FIELD_NUMBER: _ClassVar[int]
    TDP_W_FIELD_NUMBER: _ClassVar[int]
    ACCELERATORS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    hostname: str
    device_class: str
    emulated: bool
    detected_class: str
    os: str
    architecture: str
    cpu_model: str
    cores: int
    cpu_features: _containers.RepeatedScalarFieldContainer[str]
    memory_bytes: int
    memory_bandwidth_gb_s: float
    power_source: str
    power_meters: _containers.RepeatedScalarFieldContainer[str]
    tdp_w: float
    accelerators: _containers.RepeatedCompositeFieldContainer[Accelerator]
    labels: _containers.ScalarMap[str, str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hostname: _Optional[str] = ..., device_class: _Optional[str] = ..., emulated: _Optional[bool] = ..., detected_class: _Optional[str] = ..., os: _Optional[str] = ..., architecture: _Optional[str] = ..., cpu_model: _Optional[str] = ..., cores: _Optional[int] = ..., cpu_features: _Optional[_Iterable[str]] = ..., memory_bytes: _Optional[int] = ..., memory_bandwidth_gb_s: _Optional[float] = ..., power_source: _Optional[str] = ..., power_meters: _Optional[_Iterable[str]] = ..., tdp_w: _Optional[float] = ..., accelerators: _Optional[_Iterable[_Union[Accelerator, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Accelerator(_message.Message):
    __slots__ = ("kind", "vendor", "model", "memory_bytes", "unified_memory", "served_by")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNIFIED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SERVED_BY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    vendor: str
    model: str
    memory_bytes: int
    unified_memory: bool
    served_by: str
    def __init__(self, kind: _Optional[str] = ..., vendor: _Optional[str] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., unified_memory: _Optional[bool] = ..., served_by: _Optional[str] = ...) -> None: ...

class LoadModel(_message.Message):
    __slots__ = ("name", "url", "sha256", "size_bytes", "file", "slots", "context_tokens", "rate_bytes_per_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RATE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    url: str
    sha256: str
    size_bytes: int
    file: str
    slots: int
    context_tokens: int
    rate_bytes_per_s: int
    def __init__(self, name: _Optional[str] = ..., url: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file: _Optional[str] = ..., slots: _Optional[int] = ..., context_tokens: _Optional[int] = ..., rate_bytes_per_s: _Optional[int] = ...) -> None: ...

class UnloadModel(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class LocalServed(_message.Message):
    __slots__ = ("journal", "sequence", "usages")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    USAGES_FIELD_NUMBER: _ClassVar[int]
    journal: str
    sequence: int
    usages: _containers.RepeatedCompositeFieldContainer[LocalUsage]
    def __init__(self, journal: _Optional[str] = ..., sequence: _Optional[int] = ..., usages: _Optional[_Iterable[_Union[LocalUsage, _Mapping]]] = ...) -> None: ...

class LocalServedAck(_message.Message):
    __slots__ = ("journal", "sequence")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    journal: str
    sequence: int
    def __init__(self, journal: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class LocalUsage(_message.Message):
    __slots__ = ("model", "finished", "failed", "cancelled", "without_hub", "prompt_tokens", "completion_tokens", "cached_tokens", "ttft_ms", "prefill_ms", "total_ms", "joules", "first_unix_ms", "last_unix_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_HUB_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    JOULES_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    finished: int
    failed: int
    cancelled: int
    without_hub: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_ms: float
    prefill_ms: float
    total_ms: float
    joules: float
    first_unix_ms: int
    last_unix_ms: int
    def __init__(self, model: _Optional[str] = ..., finished: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., without_hub: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., ttft_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., joules: _Optional[float] = ..., first_unix_ms: _Optional[int] = ..., last_unix_ms: _Optional[int] = ...) -> None: ...

class Installation(_message.Message):
    __slots__ = ("release", "trial", "failed_release", "failure")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_RELEASE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    release: str
    trial: str
    failed_release: str
    failure: str
    def __init__(self, release: _Optional[str] = ..., trial: _Optional[str] = ..., failed_release: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class Upgrade(_message.Message):
    __slots__ = ("version", "files", "ready_within_s", "drain_within_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    READY_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    DRAIN_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    version: str
    files: _containers.RepeatedCompositeFieldContainer[UpgradeFile]
    ready_within_s: int
    drain_within_s: int
    def __init__(self, version: _Optional[str] = ..., files: _Optional[_Iterable[_Union[UpgradeFile, _Mapping]]] = ..., ready_within_s: _Optional[int] = ..., drain_within_s: _Optional[int] = ...) -> None: ...

class UpgradeFile(_message.Message):
    __slots__ = ("name", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class UpgradeProgress(_message.Message):
    __slots__ = ("version", "phase", "failure")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    version: str
    phase: str
    failure: str
    def __init__(self, version: _Optional[str] = ..., phase: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class UpgradeVerdict(_message.Message):
    __slots__ = ("release", "keep", "reason")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    release: str
    keep: bool
    reason: str
    def __init__(self, release: _Optional[str] = ..., keep: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...
