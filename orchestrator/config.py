"""Settings of the orchestrator's processes; values only, defaults with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CacheAccess:
    """The Redis of shared KV blocks: how the hub manages it, what devices are told.

    `admin_password_file`: of the user `shoal-admin`; `key_file`: 32 random bytes from
    which devices' passwords and the sealing secret are derived. Both mode 0600.
    """

    admin_url: str
    device_url: str
    admin_password_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class HubConfig:
    """One hub. Picklable: a restarted actor gets the same value and so the same ports.

    `tls_dir` holds `tls.key` and `tls.crt` of the hub, `ca_dir` the fleet's
    authority (`ca.key`, `ca.crt`). Ports 0 mean any free one, which a restarted hub
    would not find again: pass fixed ports outside tests.
    `advertised_host` is what devices and gateways are told to dial; empty: `host`.
    """

    hub_id: str
    state_url: str
    ca_dir: Path
    tls_dir: Path
    host: str = "127.0.0.1"
    enrol_port: int = 0
    link_port: int = 0
    advertised_host: str = ""
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
    # A device that produced nothing for this long, and for five times its predicted
    # TTFT, is suspect.
    stall_floor_ms: float = 10_000.0
    # The same after a request's first token: preempted sequences may rest a while.
    stream_stall_ms: float = 60_000.0
    tick_ms: int = 250

    @property
    def dial_host(self) -> str:
        """Host that goes into advertised addresses."""
        return self.advertised_host or self.host
