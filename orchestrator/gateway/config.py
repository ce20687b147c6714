"""What a gateway replica is told when it is placed; travels pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.dispatch.endpoint import CloudConfig


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Addresses, credentials and limits of one gateway.

    Files are read on the replica's node.
    """

    gateway_url: str
    state_url: str
    # Where this gateway dials the hubs.
    hub_addresses: tuple[str, ...]
    # What devices are told to dial.
    advertised_hub_addresses: tuple[str, ...]
    enrol_address: str
    ca_cert: Path
    tls_key: Path
    tls_cert: Path
    # 32 random bytes: tenants' block hash salts are derived from it.
    salt_key: Path
    # What devices may fetch (shoal.onboarding.depot); None: nothing.
    depot_dir: Path | None = None
    # Where model files that were fetched for the catalogue are kept.
    models_dir: Path = Path("models")
    cloud: CloudConfig = field(default_factory=CloudConfig)
    # Beyond it a request is refused with 429: a client that retries beats a queue that
    # nobody sees. The hub's devices queue too, and refuse on their own account.
    max_in_flight: int = 1_024
    # Of which this is one; each enforces its share of a tenant's limits.
    num_gateways: int = 1
    # A request that is not answered in this time fails with 504.
    request_timeout_s: float = 600.0
