"""The lines that people paste on a device."""

from __future__ import annotations

SCRIPT_PATH = "/shoal/v1/install.sh"
FILES_PATH = "/shoal/v1/agent"


def install_line(gateway_url: str, token: str) -> str:
    """One line that makes a device a member; trusts the network up to the gateway."""
    return f"curl -fsSL {gateway_url}{SCRIPT_PATH} | sh -s -- --token {token}"


def verified_line(gateway_url: str, token: str, script_sha256: str) -> str:
    """The same for a network that is not trusted: the script runs only with this hash."""
    return (
        f"curl -fsSL {gateway_url}{SCRIPT_PATH} -o shoal-install.sh && "
        f"echo '{script_sha256}  shoal-install.sh' | sha256sum -c - && "
        f"sh shoal-install.sh --token {token}"
    )
