import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orchestrator.identity.authority import Authority
from orchestrator.identity.key_files import KeyFileError, create_private, read_private
from shoal.errors import Reason, ShoalError

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def csr(key, common_name="admin") -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, algorithm)
    return request.public_bytes(serialization.Encoding.PEM).decode()


def p256():
    return ec.generate_private_key(ec.SECP256R1())


def loaded(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def common_name(certificate: x509.Certificate) -> str:
    return certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.load_or_create(tmp_path / "ca", lambda: NOW)


def test_first_use_makes_a_private_key_and_later_uses_load_it(tmp_path):
    first = Authority.load_or_create(tmp_path / "ca")
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert sorted(os.listdir(tmp_path / "ca")) == ["ca.crt", "ca.key"]
    assert Authority.load_or_create(tmp_path / "ca").ca_pem == first.ca_pem


def test_concurrent_first_uses_agree_on_one_authority(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Authority.load_or_create(tmp_path / "ca"), range(8)))
    assert len({authority.ca_sha256 for authority in made}) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_key_that_others_can_reach_is_refused_with_the_remedy(tmp_path, mode):
    Authority.load_or_create(tmp_path)
    (tmp_path / "ca.key").chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Authority.load_or_create(tmp_path)


def test_damaged_key_is_named(tmp_path):
    Authority.load_or_create(tmp_path)
    (tmp_path / "ca.key").write_bytes(b"nonsense")
    with pytest.raises(KeyFileError, match=r"ca\.key is not an unencrypted PEM key"):
        Authority.load_or_create(tmp_path)


def test_lost_key_does_not_silently_begin_a_new_fleet(tmp_path):
    Authority.load_or_create(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(KeyFileError, match="restore the key"):
        Authority.load_or_create(tmp_path)


def test_key_of_another_authority_is_noticed(tmp_path):
    Authority.load_or_create(tmp_path / "a")
    Authority.load_or_create(tmp_path / "b")
    (tmp_path / "b" / "ca.key").replace(tmp_path / "a" / "ca.key")
    with pytest.raises(KeyFileError, match="not of the key beside it"):
        Authority.load_or_create(tmp_path / "a")


def test_existing_secret_is_never_overwritten_by_creation(tmp_path):
    assert create_private(tmp_path / "key", b"one")
    assert not create_private(tmp_path / "key", b"two")
    assert read_private(tmp_path / "key") == b"one"


@pytest.mark.parametrize(
    "key",
    [p256(), ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)],
    ids=["p256", "ed25519", "rsa2048"],
)
def test_device_certificate_names_the_device_and_ignores_the_requested_subject(authority, key):
    issued = authority.issue_device(csr(key, "gateway:evil"), "d1")
    certificate = loaded(issued.pem)
    certificate.verify_directly_issued_by(loaded(authority.ca_pem))
    assert common_name(certificate) == "device:d1"
    assert certificate.public_key() == key.public_key()
    assert issued.serial == f"{certificate.serial_number:x}"


def test_device_certificate_is_for_clients_only_and_cannot_sign(authority):
    extensions = loaded(authority.issue_device(csr(p256()), "d1").pem).extensions
    usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_certificates_tolerate_five_minutes_of_skew_and_last_as_documented(authority):
    device = loaded(authority.issue_device(csr(p256()), "d1").pem)
    service = loaded(authority.issue_service("gateway:g1")[1])
    for certificate, days in ((device, 30), (service, 365)):
        assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
        assert certificate.not_valid_after_utc == NOW + timedelta(days=days)


def test_no_certificate_outlives_the_authority(authority):
    issued = authority.issue_device(csr(p256()), "d1", timedelta(days=36_500))
    assert issued.not_after == loaded(authority.ca_pem).not_valid_after_utc


def test_hub_certificate_carries_its_dns_name_and_fits_its_key(authority):
    key_pem, pem = authority.issue_service("hub:h1", ["shoal-hub"])
    certificate = loaded(pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["shoal-hub"]
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    assert key.public_key() == certificate.public_key()


def tampered() -> str:
    der = bytearray(
        x509.load_pem_x509_csr(csr(p256()).encode()).public_bytes(serialization.Encoding.DER)
    )
    der[-1] ^= 1
    request = x509.load_der_x509_csr(bytes(der))
    return request.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize(
    "request_pem",
    [
        "",
        "nonsense",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "x" * 100_000,
        csr(ec.generate_private_key(ec.SECP384R1())),
        csr(rsa.generate_private_key(65537, 1024)),
        tampered(),
    ],
    ids=["empty", "text", "bad-der", "huge", "p384", "rsa1024", "bad-signature"],
)
def test_unsound_signing_request_is_an_invalid_argument(authority, request_pem):
    with pytest.raises(ShoalError) as caught:
        authority.issue_device(request_pem, "d1")
    assert caught.value.reason is Reason.INVALID_ARGUMENT
    assert caught.value.param == "csr_pem"
