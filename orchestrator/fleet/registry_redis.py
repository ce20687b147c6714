"""The registry in Redis: hashes `shoal:device:<id>`, names in `shoal:device-name:<name>`.

Changes that must not race (claiming a name, connecting, revoking) are Lua scripts, which
Redis runs one at a time. What other hubs must hear of goes into the stream
`shoal:device-changes` in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from orchestrator.fleet.registry import (
    Change,
    ChangeKind,
    DeviceEntry,
    NameTaken,
    StateReport,
)
from orchestrator.fleet.view import DeviceId, DeviceState

# What any call may raise when the state Redis is away or refuses.
StateError = RedisError

_DEVICE = "shoal:device:"
_NAME = "shoal:device-name:"
_IDS = "shoal:devices"
_CHANGES = "shoal:device-changes"
# A hub that was away for longer reads the whole registry instead.
_MAX_CHANGES = 50_000
_BATCH = 1_000

# KEYS: device, name, ids. ARGV: id, then field, value, ...
_ADD = """
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return holder end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('SADD', KEYS[3], ARGV[1])
return ''
"""
# KEYS: device. ARGV: field, value, ...
_UPDATE_LIVE = """
if redis.call('HGET', KEYS[1], 'revoked') ~= '0' then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
"""
# KEYS: device. ARGV: epoch, then field, value, ...
_RECORD_STATE = """
local known = redis.call('HMGET', KEYS[1], 'revoked', 'epoch')
if known[1] ~= '0' or tonumber(known[2] or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
"""
# KEYS: device, changes. ARGV: id, hub, known epoch, length of changes.
_CONNECT = """
local epoch = math.max(tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0'), tonumber(ARGV[3])) + 1
redis.call('HSET', KEYS[1], 'epoch', string.format('%.0f', epoch), 'hub', ARGV[2])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*',
    'kind', 'connected', 'device', ARGV[1], 'epoch', string.format('%.0f', epoch), 'hub', ARGV[2])
return epoch
"""
# KEYS: device, changes. ARGV: id, length of changes.
_DRAIN = """
if redis.call('HGET', KEYS[1], 'revoked') ~= '0' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'DRAINING')
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'kind', 'drain', 'device', ARGV[1])
return 1
"""
# KEYS: device, changes. ARGV: id, prefix of name keys, length of changes.
_REVOKE = """
local name = redis.call('HGET', KEYS[1], 'name')
if not name then return 0 end
redis.call('HSET', KEYS[1], 'revoked', '1', 'state', 'REVOKED')
if redis.call('GET', ARGV[2] .. name) == ARGV[1] then redis.call('DEL', ARGV[2] .. name) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'kind', 'revoked', 'device', ARGV[1])
return 1
"""


def connect(state_url: str) -> Redis:
    """A client of the state Redis; `redis://` or `unix://` URL. Connects on first use."""
    client: Redis = Redis.from_url(
        state_url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5
    )
    return client


class RedisRegistry:
    """Registry shared by all hubs of a fleet."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._add = client.register_script(_ADD)
        self._update_live = client.register_script(_UPDATE_LIVE)
        self._record_state = client.register_script(_RECORD_STATE)
        self._connect = client.register_script(_CONNECT)
        self._drain = client.register_script(_DRAIN)
        self._revoke = client.register_script(_REVOKE)

    async def add(self, entry: DeviceEntry) -> None:
        """See Registry.add."""
        pairs = [text for pair in _fields_of(entry).items() for text in pair]
        holder = await self._add(
            keys=[_DEVICE + entry.device_id, _NAME + entry.name, _IDS],
            args=[entry.device_id, *pairs],
        )
        if holder:
            raise NameTaken(entry.name, DeviceId(holder))

    async def get(self, device_id: DeviceId) -> DeviceEntry | None:
        """See Registry.get."""
        fields = cast(dict[str, str], await self._client.hgetall(_DEVICE + device_id))
        return _entry_of(device_id, fields) if fields.get("name") else None

    async def find_by_name(self, name: str) -> DeviceEntry | None:
        """See Registry.find_by_name."""
        device_id = cast(str | None, await self._client.get(_NAME + name))
        return None if device_id is None else await self.get(DeviceId(device_id))

    async def list(self) -> list[DeviceEntry]:
        """See Registry.list."""
        ids = sorted(cast(set[str], await self._client.smembers(_IDS)))
        pipeline = self._client.pipeline(transaction=False)
        for device_id in ids:
            pipeline.hgetall(_DEVICE + device_id)
        rows = await pipeline.execute()
        return [
            _entry_of(DeviceId(device_id), fields)
            for device_id, fields in zip(ids, rows, strict=True)
            if fields.get("name")
        ]

    async def record_states(self, reports: Sequence[StateReport]) -> None:
        """See Registry.record_states."""
        for start in range(0, len(reports), _BATCH):
            pipeline = self._client.pipeline(transaction=False)
            for report in reports[start : start + _BATCH]:
                args = [str(report.epoch), "state", report.state.value]
                args += ["last_seen_unix_ms", str(report.last_seen_unix_ms)]
                if report.device_class:
                    args += ["class", report.device_class]
                await self._record_state(
                    keys=[_DEVICE + report.device_id], args=args, client=pipeline
                )
            await pipeline.execute()

    async def connect(self, device_id: DeviceId, hub: str, known_epoch: int) -> int:
        """See Registry.connect."""
        return int(
            await self._connect(
                keys=[_DEVICE + device_id, _CHANGES],
                args=[device_id, hub, known_epoch, _MAX_CHANGES],
            )
        )

    async def drain(self, device_id: DeviceId) -> None:
        """See Registry.drain."""
        await self._drain(keys=[_DEVICE + device_id, _CHANGES], args=[device_id, _MAX_CHANGES])

    async def last_change(self) -> str:
        """See Registry.last_change."""
        newest = cast(Any, await self._client.xrevrange(_CHANGES, count=1))
        return str(newest[0][0]) if newest else "0-0"

    async def changes(self, after: str, wait_ms: int) -> tuple[Sequence[Change], str]:
        """See Registry.changes; at most some thousands at once."""
        streams = await self._client.xread({_CHANGES: after}, count=_BATCH, block=wait_ms)
        rows = cast(Any, streams)[0][1] if streams else []
        changes = [
            Change(
                ChangeKind(fields["kind"]),
                DeviceId(fields["device"]),
                int(fields.get("epoch", "0")),
                fields.get("hub", ""),
            )
            for _, fields in rows
        ]
        return changes, str(rows[-1][0]) if rows else after

    async def record_certificate(self, device_id: DeviceId, cert_serial: str) -> None:
        """See Registry.record_certificate."""
        await self._update_live(keys=[_DEVICE + device_id], args=["cert_serial", cert_serial])

    async def revoke(self, device_id: DeviceId) -> None:
        """See Registry.revoke."""
        await self._revoke(
            keys=[_DEVICE + device_id, _CHANGES], args=[device_id, _NAME, _MAX_CHANGES]
        )


def _fields_of(entry: DeviceEntry) -> dict[str, str]:
    return {
        "name": entry.name,
        "cert_serial": entry.cert_serial,
        "state": entry.state.value,
        "class": entry.device_class,
        "revoked": "1" if entry.revoked else "0",
        "enrolled_unix_ms": str(entry.enrolled_unix_ms),
        "last_seen_unix_ms": str(entry.last_seen_unix_ms),
        "epoch": str(entry.epoch),
        "hub": entry.hub,
    }


def _entry_of(device_id: DeviceId, fields: Mapping[str, str]) -> DeviceEntry:
    return DeviceEntry(
        device_id=device_id,
        name=fields["name"],
        cert_serial=fields.get("cert_serial", ""),
        state=DeviceState(fields.get("state", "ENROLLED")),
        device_class=fields.get("class", ""),
        revoked=fields.get("revoked") == "1",
        enrolled_unix_ms=int(fields.get("enrolled_unix_ms", "0")),
        last_seen_unix_ms=int(fields.get("last_seen_unix_ms", "0")),
        epoch=int(fields.get("epoch", "0")),
        hub=fields.get("hub", ""),
    )
