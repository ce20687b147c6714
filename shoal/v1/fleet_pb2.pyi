from shoal.v1 import device_pb2 as _device_pb2
from shoal.v1 import engine_pb2 as _engine_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchSummaryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HubSummary(_message.Message):
    __slots__ = ("hub_id", "ready_devices", "models", "running", "waiting", "condition")
    HUB_ID_FIELD_NUMBER: _ClassVar[int]
    READY_DEVICES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    hub_id: str
    ready_devices: int
    models: _containers.RepeatedCompositeFieldContainer[ModelSummary]
    running: int
    waiting: int
    condition: str
    def __init__(self, hub_id: _Optional[str] = ..., ready_devices: _Optional[int] = ..., models: _Optional[_Iterable[_Union[ModelSummary, _Mapping]]] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., condition: _Optional[str] = ...) -> None: ...

class ModelSummary(_message.Message):
    __slots__ = ("name", "num_parameters", "context_tokens", "ready_devices", "device_classes", "free_slots", "fingerprint", "expected_ttft_ms", "expected_tpot_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READY_DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CLASSES_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_parameters: int
    context_tokens: int
    ready_devices: int
    device_classes: _containers.RepeatedScalarFieldContainer[str]
    free_slots: int
    fingerprint: str
    expected_ttft_ms: float
    expected_tpot_ms: float
    def __init__(self, name: _Optional[str] = ..., num_parameters: _Optional[int] = ..., context_tokens: _Optional[int] = ..., ready_devices: _Optional[int] = ..., device_classes: _Optional[_Iterable[str]] = ..., free_slots: _Optional[int] = ..., fingerprint: _Optional[str] = ..., expected_ttft_ms: _Optional[float] = ..., expected_tpot_ms: _Optional[float] = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDevicesReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ...) -> None: ...

class DeviceRequest(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: str
    def __init__(self, device: _Optional[str] = ...) -> None: ...

class DeviceReply(_message.Message):
    __slots__ = ("device_id", "state")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    state: str
    def __init__(self, device_id: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("device_id", "name", "state", "capabilities", "models", "load", "last_seen_unix_ms", "epoch", "agent_version", "protocol", "in_flight", "clock_skew_ms", "hub_id", "installation", "upgrade", "certificate_expires_unix_ms")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SKEW_MS_FIELD_NUMBER: _ClassVar[int]
    HUB_ID_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    name: str
    state: str
    capabilities: _device_pb2.CapabilityReport
    models: _containers.RepeatedCompositeFieldContainer[_engine_pb2.ModelReport]
    load: _device_pb2.DeviceLoad
    last_seen_unix_ms: int
    epoch: int
    agent_version: str
    protocol: int
    in_flight: int
    clock_skew_ms: int
    hub_id: str
    installation: _device_pb2.Installation
    upgrade: _device_pb2.UpgradeProgress
    certificate_expires_unix_ms: int
    def __init__(self, device_id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., capabilities: _Optional[_Union[_device_pb2.CapabilityReport, _Mapping]] = ..., models: _Optional[_Iterable[_Union[_engine_pb2.ModelReport, _Mapping]]] = ..., load: _Optional[_Union[_device_pb2.DeviceLoad, _Mapping]] = ..., last_seen_unix_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., agent_version: _Optional[str] = ..., protocol: _Optional[int] = ..., in_flight: _Optional[int] = ..., clock_skew_ms: _Optional[int] = ..., hub_id: _Optional[str] = ..., installation: _Optional[_Union[_device_pb2.Installation, _Mapping]] = ..., upgrade: _Optional[_Union[_device_pb2.UpgradeProgress, _Mapping]] = ..., certificate_expires_unix_ms: _Optional[int] = ...) -> None: ...
