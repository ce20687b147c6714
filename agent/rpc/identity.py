"""The device's identity on disk: private key, certificate, CA and where the hubs are."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.kv.access import SharedAccess, load_shared_access
from agent.session.config import SHARED_KV_FILE
from agent.session.errors import AgentError, ExitCode

log = structlog.get_logger()

# Renewed when less of its life is left: ten days of thirty, so that a device may
# be off for a week and still come back by itself.
RENEWAL_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Identity:
    """What a device connects with."""

    device_id: str
    name: str
    hub_addresses: tuple[str, ...]
    gateway_url: str
    key_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    ca_pem: bytes = field(repr=False)
    # None: the fleet shares no KV blocks with this device.
    shared_kv: SharedAccess | None = field(repr=False, default=None)

    def seconds_left(self, now: datetime) -> float:
        """Seconds until the certificate expires; negative afterwards."""
        return (self._certificate().not_valid_after_utc - now).total_seconds()

    def wants_renewal(self, now: datetime) -> bool:
        """True when less than a third of the certificate's life is left."""
        certificate = self._certificate()
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        return self.seconds_left(now) < life.total_seconds() * RENEWAL_SHARE

    def _certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate_pem)


class IdentityStore:
    """Reads and writes an `Identity` in the agent's state directory.

    `identity.json` is written last: with it the identity is complete.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def load(self) -> Identity | None:
        """The stored identity; None before enrolment; AgentError when it is damaged."""
        path = self._home / "identity.json"
        if not path.exists():
            return None
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            identity = Identity(
                device_id=str(data["device_id"]),
                name=str(data["name"]),
                hub_addresses=tuple(str(address) for address in data["hub_addresses"]),
                gateway_url=str(data["gateway_url"]),
                key_pem=(self._home / "device.key").read_bytes(),
                certificate_pem=(self._home / "device.crt").read_bytes(),
                ca_pem=(self._home / "ca.crt").read_bytes(),
                shared_kv=_shared_kv(self._home / SHARED_KV_FILE),
            )
            check_certificate(identity)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AgentError(
                ExitCode.IDENTITY_UNUSABLE,
                f"the identity in {self._home} cannot be used ({error}); empty that directory "
                "and join again with a fresh token",
            ) from error
        return identity

    def save(self, identity: Identity) -> None:
        """Write all files, each atomically; the key is readable by this user only."""
        write_private(self._home / "device.key", identity.key_pem)
        write_private(self._home / "ca.crt", identity.ca_pem)
        write_private(self._home / "device.crt", identity.certificate_pem)
        if identity.shared_kv is None:
            (self._home / SHARED_KV_FILE).unlink(missing_ok=True)
        else:
            write_private(self._home / SHARED_KV_FILE, identity.shared_kv.to_json())
        description = {
            "device_id": identity.device_id,
            "name": identity.name,
            "hub_addresses": list(identity.hub_addresses),
            "gateway_url": identity.gateway_url,
        }
        write_private(self._home / "identity.json", json.dumps(description, indent=1).encode())


def _shared_kv(path: Path) -> SharedAccess | None:
    """Unlike the rest a device can do without it; the next renewal brings it again."""
    try:
        return load_shared_access(path)
    except ValueError as error:
        log.warning("shared_kv_forgotten", error=str(error))
        return None


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 so that a crash leaves the old content or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def make_key() -> bytes:
    """A fresh ECDSA P-256 key as PKCS#8 PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def make_csr(key_pem: bytes, name: str) -> str:
    """A signing request for the key; the authority sets the subject itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64] or "device")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(_private_key(key_pem), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def ca_der(ca_pem: bytes) -> bytes:
    """The authority's certificate in DER; ValueError when it is not one certificate."""
    certificates = x509.load_pem_x509_certificates(ca_pem)
    if len(certificates) != 1:
        raise ValueError("expected exactly one CA certificate")
    return certificates[0].public_bytes(serialization.Encoding.DER)


def check_certificate(identity: Identity) -> None:
    """Raise ValueError unless the certificate is the CA's, for our key and our id."""
    certificate = x509.load_pem_x509_certificate(identity.certificate_pem)
    if certificate.public_key() != _private_key(identity.key_pem).public_key():
        raise ValueError("the certificate is not for this device's key")
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.ca_pem))
    except InvalidSignature as error:
        raise ValueError("the certificate was not issued by the fleet's authority") from error
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if [name.value for name in names] != [f"device:{identity.device_id}"]:
        raise ValueError("the certificate does not name this device")
    if not identity.hub_addresses:
        raise ValueError("no hub address")


def _private_key(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the device key is not an elliptic curve key")
    return key
