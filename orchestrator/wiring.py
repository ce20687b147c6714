"""From the command line of `orchestrator.app` to the settings of hubs and gateways."""

from __future__ import annotations

import argparse
from dataclasses import replace
from urllib.parse import urlsplit

from orchestrator import setup
from orchestrator.actors.ports import FleetPorts
from orchestrator.config import HubConfig
from orchestrator.dispatch.endpoint import CloudConfig
from orchestrator.gateway.config import GatewayConfig
from shoal.home import Home

_ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - compared with, not bound to # nosec B104


def hub_configs(arguments: argparse.Namespace, home: Home, ports: FleetPorts) -> list[HubConfig]:
    """One for each hub, each with its own ports and certificate."""
    advertised = advertised_host(arguments)
    cache = setup.cache_access(arguments.cache_url, home, advertised, local_host(arguments))
    if cache is not None:
        terms = {"share_policy": arguments.kv_share, "write_bytes_per_s": arguments.kv_write_limit}
        cache = replace(cache, **terms)
    return [
        HubConfig(
            hub_id=hub_id,
            state_url=arguments.redis_url,
            ca_dir=home.ca_dir,
            tls_dir=home.hub_dir / hub_id,
            host=arguments.host,
            advertised_host=advertised,
            inner_host=local_host(arguments),
            fleet_links=tuple(f"{advertised}:{each.link}" for each in ports.hubs),
            enrol_port=of_hub.enrol,
            link_port=of_hub.link,
            cache=cache,
        )
        for hub_id, of_hub in zip(setup.hub_ids(arguments.hubs), ports.hubs, strict=True)
    ]


def gateway_config(
    arguments: argparse.Namespace,
    home: Home,
    ports: FleetPorts,
    secrets: setup.FleetSecrets,
    cloud: CloudConfig,
) -> GatewayConfig:
    """The same for all replicas; packs what devices fetch."""
    advertised = advertised_host(arguments)
    url = f"http://{advertised}:{arguments.port}"
    return GatewayConfig(
        gateway_url=url,
        state_url=arguments.redis_url,
        hub_addresses=tuple(f"{local_host(arguments)}:{hub.link}" for hub in ports.hubs),
        advertised_hub_addresses=tuple(f"{advertised}:{hub.link}" for hub in ports.hubs),
        enrol_address=f"{advertised}:{ports.hubs[0].enrol}",
        ca_cert=secrets.ca_cert,
        tls_key=home.gateway_dir / "tls.key",
        tls_cert=home.gateway_dir / "tls.crt",
        salt_key=secrets.salt_key,
        num_gateways=arguments.gateways,
        depot_dir=setup.prepare_depot(home, url),
        models_dir=home.models_dir,
        cloud=cloud,
    )


def cache_names(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Hosts that the certificate of the shared KV blocks' Redis is for; none without TLS."""
    if urlsplit(arguments.cache_url).scheme != "rediss":
        return ()
    return tuple(dict.fromkeys(("127.0.0.1", local_host(arguments), advertised_host(arguments))))


def local_host(arguments: argparse.Namespace) -> str:
    """The address by which this machine reaches what is bound to `--host`."""
    return "127.0.0.1" if arguments.host == _ALL_INTERFACES else str(arguments.host)


def advertised_host(arguments: argparse.Namespace) -> str:
    """What devices dial."""
    return arguments.advertise or local_host(arguments)
