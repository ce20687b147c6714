"""Settings of the orchestrator's processes; values only, defaults with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shoal.kv_sharing import SharePolicy


@dataclass(frozen=True, slots=True)
class CacheAccess:
    """The Redis of shared KV blocks: how the hub manages it, what devices are told.

    `admin_password_file`: of the user `shoal-admin`; `key_file`: 32 random bytes from
    which devices' passwords and the sealing secret are derived. Both mode 0600.
    `share_policy` and `write_bytes_per_s` (0: no limit): of devices whose owners set none.
    """

    admin_url: str
    device_url: str
    admin_password_file: Path
    key_file: Path
    share_policy: SharePolicy = SharePolicy.ALWAYS
    write_bytes_per_s: int = 0
    # The authority behind the certificate of a `rediss://` cache.
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class HealthTerms:
    """When the hub stops trusting a device. Bounds are explained in fleet/health/bounds.py.

    The factors and floors are judgement: predictions are off by a factor of two at times,
    and a machine that also does other work stops for a second or two.
    """

    # Silence before a first token, in predicted TTFTs without any cached prefix.
    first_token_factor: float = 4.0
    first_token_floor_ms: float = 3_000.0
    # The same floor before a device finished its first request for a model: its
    # predictions rest on a seed only.
    unproven_floor_ms: float = 10_000.0
    # Silence between tokens, in predicted TPOTs, and in the time of the prefill between them.
    next_token_factor: float = 15.0
    next_prefill_factor: float = 2.0
    next_token_floor_ms: float = 2_500.0
    # No bound is longer, but for what one and a half predictions need.
    bound_cap_ms: float = 30_000.0
    # Silence, in bounds, after which what could not move is given up.
    lost_factor: float = 1.5
    # Outliers: of so many newest outcomes, none older, at least so many.
    outcomes: int = 20
    outcomes_ms: float = 60_000.0
    min_outcomes: int = 5
    # Ejected: this share failed, or this many in a row, or the median is this much slower
    # than predicted and than the others are, though `min_outcomes` slow ones were learned from.
    failed_share: float = 0.5
    failed_in_row: int = 3
    slow_factor: float = 4.0
    # For so long, twice as long each time up to the cap; each quiet minute forgives one.
    ejection_ms: float = 5_000.0
    ejection_cap_ms: float = 300_000.0
    forgive_ms: float = 60_000.0
    # Of the devices that serve a model at most this share, but one where there are two.
    ejected_share: float = 0.3
    # The brake: more than this share of at least so many working devices within so long.
    brake_share: float = 0.5
    brake_min_devices: int = 4
    brake_window_ms: float = 10_000.0
    # How long the hub suspects itself, at least and at most.
    brake_min_ms: float = 5_000.0
    brake_max_ms: float = 30_000.0


@dataclass(frozen=True, slots=True)
class HubConfig:
    """One hub. Picklable: a restarted actor gets the same value and so the same ports.

    `tls_dir` holds `tls.key` and `tls.crt` of the hub, `ca_dir` the fleet's
    authority (`ca.key`, `ca.crt`). Ports 0 mean any free one, which a restarted hub
    would not find again: pass fixed ports outside tests.
    `advertised_host` is what devices are told to dial; empty: `host`. `inner_host` is
    what gateways are told; empty: the same. `fleet_links`: the link addresses of all hubs,
    for devices that enrol; empty: this one's own.
    """

    hub_id: str
    state_url: str
    ca_dir: Path
    tls_dir: Path
    host: str = "127.0.0.1"
    enrol_port: int = 0
    link_port: int = 0
    advertised_host: str = ""
    inner_host: str = ""
    fleet_links: tuple[str, ...] = ()
    # None: devices share no KV blocks.
    cache: CacheAccess | None = None
    # A device is missed within one lease; five heartbeats a lease forgive lost ones.
    heartbeat_interval_ms: int = 2_000
    lease_ms: int = 10_000
    # Attempts of one request on different devices before its failure is final.
    max_attempts: int = 4
    # Frames that wait for one gateway; then that gateway's session is ended.
    session_queue_frames: int = 4_096
    # Frames that wait for one device; then it counts as lost.
    device_queue_frames: int = 1_024
    health: HealthTerms = field(default_factory=HealthTerms)
    # Hedging (hub/hedging.py) of requests that do not say themselves: after so many
    # predicted TTFTs without a token; 0: never. At most this share of those that run.
    hedge_after: float = 0.0
    hedge_share: float = 0.05
    # Requests that a device holds beyond its slots, as a share of them, rounded up. Enough
    # to go on with while the next are on their way; the rest waits here, where an urgent
    # one can still go first.
    device_waiting_share: float = 0.5
    # Bounds of the hub's queue: requests, their prompts' bytes, and how long one waits.
    max_queued: int = 512
    max_queued_prompt_bytes: int = 64 * 2**20
    max_queue_wait_ms: float = 60_000.0
    tick_ms: int = 250

    @property
    def dial_host(self) -> str:
        """Host that goes into advertised addresses."""
        return self.advertised_host or self.host
