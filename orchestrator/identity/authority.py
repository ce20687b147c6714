"""The fleet's certificate authority: made once, kept in two files, signs devices and services."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orchestrator.identity.csr import DevicePublicKey, public_key_of
from orchestrator.identity.key_files import KeyFileError, create_private, read_private

AUTHORITY_LIFE = timedelta(days=3650)
# Short, so that a stolen device's key is worth little; agents renew at a third left.
DEVICE_LIFE = timedelta(days=30)
SERVICE_LIFE = timedelta(days=365)
# Devices' clocks may be this far behind and still accept a fresh certificate.
CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A signed certificate; `serial` is hex, as devices' records hold it."""

    pem: str
    serial: str
    not_after: datetime


class Authority:
    """Signs certificates. Holds the private key in memory; writes nothing after creation."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        now: Callable[[], datetime],
    ) -> None:
        self._key = key
        self._certificate = certificate
        self._now = now

    @classmethod
    def load_or_create(
        cls, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> Authority:
        """The authority in `folder` (`ca.key` mode 0600, `ca.crt`), made at first use.

        Several processes may call this at once: one makes it, all use it.
        Raises KeyFileError when the key is open to others, damaged or not the certificate's.
        """
        key_path, certificate_path = folder / "ca.key", folder / "ca.crt"
        # The key is written first: a certificate without it was not left by a creator at work.
        if certificate_path.exists() and not key_path.exists():
            raise KeyFileError(
                f"{certificate_path} exists without {key_path}: restore the key from a backup,"
                " or remove the certificate to begin a new fleet (every device joins again)"
            )
        if not key_path.exists():
            create_private(key_path, _new_key_pem())
        key = _read_key(key_path)
        if not certificate_path.exists():
            pem = _self_signed(key, now()).public_bytes(serialization.Encoding.PEM)
            create_private(certificate_path, pem)
        return cls(key, _read_certificate(certificate_path, key), now)

    @property
    def ca_pem(self) -> str:
        """The authority's own certificate; public."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def ca_sha256(self) -> str:
        """Hex SHA-256 of the certificate's DER: the pin in join tokens."""
        der = self._certificate.public_bytes(serialization.Encoding.DER)
        return hashlib.sha256(der).hexdigest()

    def issue_device(
        self, csr_pem: str, device_id: str, life: timedelta = DEVICE_LIFE
    ) -> IssuedCertificate:
        """A client certificate named `device:<device_id>`, whatever subject the request has.

        Raises ShoalError (INVALID_ARGUMENT) for a request that is not sound.
        """
        return self._sign(
            public_key_of(csr_pem),
            f"device:{device_id}",
            life,
            [ExtendedKeyUsageOID.CLIENT_AUTH],
            (),
        )

    def issue_service(
        self, common_name: str, dns_names: Sequence[str] = (), life: timedelta = SERVICE_LIFE
    ) -> tuple[str, str]:
        """A fresh key and its certificate, both PEM, for a hub or a gateway.

        `common_name` is `hub:<id>` or `gateway:<id>`; a hub needs HUB_TLS_NAME among
        `dns_names`, which may be IP addresses, too. The key is returned and not kept.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issued = self._sign(key.public_key(), common_name, life, usages, dns_names)
        return _key_pem(key).decode(), issued.pem

    def _sign(
        self,
        public_key: DevicePublicKey,
        common_name: str,
        life: timedelta,
        usages: list[x509.ObjectIdentifier],
        dns_names: Sequence[str],
    ) -> IssuedCertificate:
        now = self._now()
        not_after = min(now + life, self._certificate.not_valid_after_utc)
        if not_after <= now:
            raise KeyFileError("the fleet's certificate authority has expired; begin a new one")
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if dns_names:
            names = x509.SubjectAlternativeName([_general_name(name) for name in dns_names])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return IssuedCertificate(
            pem=certificate.public_bytes(serialization.Encoding.PEM).decode(),
            serial=f"{certificate.serial_number:x}",
            not_after=not_after,
        )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _new_key_pem() -> bytes:
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _self_signed(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    fingerprint = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"shoal fleet {fingerprint.digest.hex()[:8]}")
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(fingerprint, critical=False)
        .sign(key, hashes.SHA256())
    )


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_private(path), password=None)
    except (ValueError, TypeError) as error:
        raise KeyFileError(f"{path} is not an unencrypted PEM key; restore a backup") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeyFileError(f"{path} is not an elliptic curve key; restore a backup")
    return key


def _read_certificate(path: Path, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (ValueError, OSError) as error:
        raise KeyFileError(f"{path} is not a readable PEM certificate") from error
    if certificate.public_key() != key.public_key():
        raise KeyFileError(f"{path} is not of the key beside it; restore both from one backup")
    return certificate


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
