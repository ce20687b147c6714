"""What both ends of a gRPC channel must set alike: versions, sizes, keepalive."""

from __future__ import annotations

from collections.abc import Sequence

# An agent and a hub talk when they are at most one version apart. What each brought:
#   2: reports of local requests; upgrades.
PROTOCOL_VERSION = 2
MIN_PROTOCOL_VERSION = PROTOCOL_VERSION - 1

# Prompts reach a few MiB of text; gRPC's own default limit is 4 MiB.
MAX_MESSAGE_BYTES = 32 * 1024 * 1024

# Certificates name roles, not hosts, so that a hub may move; the channel's
# target name is overridden with this one.
HUB_TLS_NAME = "shoal-hub"
CLOUD_TLS_NAME = "shoal-cloud"

# Among a model report's kernels: greedy drafts are verified in passes over single rows, since
# passes over several round differently.
ROW_BY_ROW = "verify:row_by_row"

# A half-open TCP connection is found within 15 s: ping every 10 s, 5 s to answer.
CHANNEL_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC pings to measure the path whenever data comes, which is more work for a hub of
    # thousands of devices than their heartbeats. A fixed window of 1 MiB fills 80 Mbit/s
    # at 100 ms; it bounds and reserves nothing.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1024 * 1024),
    # TLS buffers of each connection; the default is 16 KiB.
    ("grpc.tsi.max_frame_size", 4096),
    # No header repeats often enough to be worth remembering on both sides.
    ("grpc.http2.hpack_table_size.decoder", 0),
    ("grpc.http2.hpack_table_size.encoder", 0),
)
# A server answers pings more frequent than one in 300 s with GOAWAY unless told otherwise.
SERVER_OPTIONS: Sequence[tuple[str, int | str]] = (
    *CHANNEL_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
)


def agree_on_protocol(peer_min: int, peer_max: int) -> int | None:
    """The highest version both sides speak, or None when there is none."""
    version = min(PROTOCOL_VERSION, peer_max)
    return version if version >= max(MIN_PROTOCOL_VERSION, peer_min) else None
