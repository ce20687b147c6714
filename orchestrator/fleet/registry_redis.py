"""The registry in Redis: hashes `shoal:device:<id>`, names in `shoal:device-name:<name>`.

Changes that must not race (claiming a name, revoking) are Lua scripts, which
Redis runs one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from orchestrator.fleet.registry import DeviceEntry, NameTaken
from orchestrator.fleet.view import DeviceId, DeviceState

# What any call may raise when the state Redis is away or refuses.
StateError = RedisError

_DEVICE = "shoal:device:"
_NAME = "shoal:device-name:"
_IDS = "shoal:devices"

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
# KEYS: device. ARGV: id, prefix of name keys.
_REVOKE = """
local name = redis.call('HGET', KEYS[1], 'name')
if not name then return 0 end
redis.call('HSET', KEYS[1], 'revoked', '1', 'state', 'REVOKED')
if redis.call('GET', ARGV[2] .. name) == ARGV[1] then redis.call('DEL', ARGV[2] .. name) end
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

    async def record_state(
        self, device_id: DeviceId, state: DeviceState, last_seen_unix_ms: int, device_class: str
    ) -> None:
        """See Registry.record_state."""
        args = ["state", state.value, "last_seen_unix_ms", str(last_seen_unix_ms)]
        if device_class:
            args += ["class", device_class]
        await self._update_live(keys=[_DEVICE + device_id], args=args)

    async def next_epoch(self, device_id: DeviceId) -> int:
        """See Registry.next_epoch."""
        return int(await self._client.hincrby(_DEVICE + device_id, "epoch", 1))

    async def record_certificate(self, device_id: DeviceId, cert_serial: str) -> None:
        """See Registry.record_certificate."""
        await self._update_live(keys=[_DEVICE + device_id], args=["cert_serial", cert_serial])

    async def revoke(self, device_id: DeviceId) -> None:
        """See Registry.revoke."""
        await self._revoke(keys=[_DEVICE + device_id], args=[device_id, _NAME])


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
    )
