"""Signing requests of devices: only the key in them counts, and it must be a sound one."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from shoal.errors import invalid

MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
# An ECDSA request takes 400 bytes, an RSA 8192 one about 3 KiB.
MAX_CSR_CHARS = 16_384

DevicePublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


def public_key_of(csr_pem: str) -> DevicePublicKey:
    """The key of a request whose signature proves that the sender holds it.

    The subject and all extensions are ignored: the authority names the device itself.
    Raises ShoalError (INVALID_ARGUMENT, `csr_pem`).
    """
    if len(csr_pem) > MAX_CSR_CHARS:
        raise invalid("csr_pem", f"csr_pem is longer than {MAX_CSR_CHARS} characters")
    try:
        csr = x509.load_pem_x509_csr(csr_pem.encode())
        key = csr.public_key()
        signature_valid = csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise invalid("csr_pem", "csr_pem is not a PEM certificate signing request") from error
    if not signature_valid:
        raise invalid("csr_pem", "the signature of csr_pem does not fit its key")
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, rsa.RSAPublicKey) and MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        return key
    raise invalid(
        "csr_pem",
        f"the key of csr_pem must be ECDSA P-256, Ed25519 or RSA of {MIN_RSA_BITS} to"
        f" {MAX_RSA_BITS} bits",
    )
