from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("token", "csr_pem", "name", "min_protocol", "max_protocol")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MAX_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    token: str
    csr_pem: str
    name: str
    min_protocol: int
    max_protocol: int
    def __init__(self, token: _Optional[str] = ..., csr_pem: _Optional[str] = ..., name: _Optional[str] = ..., min_protocol: _Optional[int] = ..., max_protocol: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("csr_pem",)
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    csr_pem: str
    def __init__(self, csr_pem: _Optional[str] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("device_id", "certificate_pem", "ca_pem", "hub_addresses", "cache_url", "cache_user", "cache_password", "fleet_secret", "cache_share_policy", "cache_write_bytes_per_s")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    HUB_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CACHE_URL_FIELD_NUMBER: _ClassVar[int]
    CACHE_USER_FIELD_NUMBER: _ClassVar[int]
    CACHE_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    FLEET_SECRET_FIELD_NUMBER: _ClassVar[int]
    CACHE_SHARE_POLICY_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    certificate_pem: str
    ca_pem: str
    hub_addresses: _containers.RepeatedScalarFieldContainer[str]
    cache_url: str
    cache_user: str
    cache_password: str
    fleet_secret: bytes
    cache_share_policy: str
    cache_write_bytes_per_s: int
    def __init__(self, device_id: _Optional[str] = ..., certificate_pem: _Optional[str] = ..., ca_pem: _Optional[str] = ..., hub_addresses: _Optional[_Iterable[str]] = ..., cache_url: _Optional[str] = ..., cache_user: _Optional[str] = ..., cache_password: _Optional[str] = ..., fleet_secret: _Optional[bytes] = ..., cache_share_policy: _Optional[str] = ..., cache_write_bytes_per_s: _Optional[int] = ...) -> None: ...
