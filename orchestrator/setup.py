"""What a fleet must have before its processes start: authority, certificates, API keys."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from orchestrator.config import CacheAccess
from orchestrator.fleet.registry_redis import connect
from orchestrator.identity.api_keys import Role, new_key
from orchestrator.identity.authority import Authority
from orchestrator.identity.key_files import create_private, read_private, write_private
from orchestrator.identity.key_store_redis import KeyStore
from orchestrator.identity.tenants import TenantPolicy
from orchestrator.identity.tenants_redis import TenantStore
from orchestrator.request import Privacy
from shoal.home import Home
from shoal.onboarding.depot import make_depot
from shoal.onboarding.sources import SourcesMissingError
from shoal.ports import is_loopback, url_host
from shoal.wire import CLOUD_TLS_NAME, HUB_TLS_NAME

_log = structlog.get_logger(__name__)

GATEWAY_ID = "gateway-1"
CLOUD_ID = "cloud-1"
_SALT_KEY_BYTES = 32
_KV_KEY_BYTES = 32
_RAY_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class FleetSecrets:
    """Where the fleet's credentials lie."""

    ca_cert: Path
    salt_key: Path


def hub_ids(num_hubs: int) -> list[str]:
    """Names of a fleet's hubs; stable, so that each finds its devices again."""
    return [f"hub-{number}" for number in range(1, num_hubs + 1)]


def prepare_identity(
    home: Home, num_hubs: int = 1, cache_names: Sequence[str] = ()
) -> FleetSecrets:
    """Make or load the authority, issue service certificates, make the fleet's keys.

    `cache_names`: hosts by which the Redis of shared KV blocks is reached over TLS.

    Raises KeyFileError when a secret is open to others.
    """
    authority = Authority.load_or_create(home.ca_dir)
    services = (
        *((home.hub_dir / each, f"hub:{each}", (HUB_TLS_NAME,)) for each in hub_ids(num_hubs)),
        (home.gateway_dir, f"gateway:{GATEWAY_ID}", ()),
        (home.path / "cloud", f"cloud:{CLOUD_ID}", (CLOUD_TLS_NAME,)),
        *([(home.cache_tls_dir, "cache:1", tuple(cache_names))] if cache_names else []),
    )
    for folder, common_name, dns_names in services:
        key_pem, cert_pem = authority.issue_service(common_name, dns_names)
        write_private(folder / "tls.key", key_pem.encode())
        write_private(folder / "tls.crt", cert_pem.encode())
    # A cloud node gets its folder whole, on whatever machine it runs.
    write_private(home.path / "cloud" / "ca.crt", authority.ca_pem.encode())
    salt_key = home.path / "keys" / "salt.key"
    create_private(salt_key, secrets.token_bytes(_SALT_KEY_BYTES))
    create_private(home.kv_key_file, secrets.token_bytes(_KV_KEY_BYTES))
    create_private(home.ray_token_file, secrets.token_hex(_RAY_TOKEN_BYTES).encode())
    return FleetSecrets(home.ca_dir / "ca.crt", salt_key)


async def prepare_keys(home: Home, state_url: str) -> None:
    """Make the local API keys at first use, and tell Redis of them at each start.

    Redis may be new or empty while the key files are not. Their tenant's policy is set
    with its first key only: a policy that was lost with Redis is not to come back as a
    laxer one. A key that was revoked is replaced by a new one.
    """
    client = connect(state_url)
    try:
        store = KeyStore(client)
        if not home.default_key_file.exists():
            await TenantStore(client).put("default", TenantPolicy(Privacy.ANY))
        for path, name, role in (
            (home.admin_key_file, "local-admin", Role.ADMIN),
            (home.default_key_file, "local-default", Role.USER),
        ):
            create_private(path, new_key().encode())
            if await store.is_revoked(read_private(path).decode().strip()):
                write_private(path, new_key().encode())
            await store.put(read_private(path).decode().strip(), "default", name, role)
    finally:
        await client.aclose()


def cache_access(
    url: str, home: Home, advertised_host: str, local_host: str = ""
) -> CacheAccess | None:
    """The cache at `url`; None without one, or when not every device could dial it.

    Hubs reach a cache at the advertised host by `local_host`, where that is given.
    """
    if not url:
        return None
    if is_loopback(urlsplit(url).hostname or "") and not is_loopback(advertised_host):
        _log.warning("kv_blocks_not_shared", reason="the cache listens on loopback only", url=url)
        return None
    parts = urlsplit(url)
    admin_url = url
    if local_host and parts.hostname == advertised_host:
        admin_url = parts._replace(netloc=f"{url_host(local_host)}:{parts.port}").geturl()
    ca_file = home.ca_dir / "ca.crt" if parts.scheme == "rediss" else None
    return CacheAccess(admin_url, url, home.cache_admin_file, home.kv_key_file, ca_file=ca_file)


def prepare_depot(home: Home, gateway_url: str) -> Path | None:
    """Pack what devices fetch; None when this installation lacks a part of it.

    About half a second for the default model and an engine. A fleet whose machines
    are set up in another way runs without.
    """
    try:
        depot = make_depot(home.depot_dir, gateway_url)
    except (SourcesMissingError, OSError, ValueError) as error:
        _log.warning("devices_cannot_install", error=str(error))
        return None
    _log.info("depot_ready", files=len(depot.files), script_sha256=depot.script_sha256)
    return home.depot_dir
