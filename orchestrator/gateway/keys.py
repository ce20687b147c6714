"""The admin API's view of API keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.gateway.auth import Authenticator, Caller
from orchestrator.identity.api_keys import Role
from orchestrator.identity.key_store_redis import KeyEntry, KeyStore
from orchestrator.identity.tenants_redis import TenantStore
from shoal.errors import Reason, ShoalError
from shoal.openai.fields import Fields


async def create_key(keys: KeyStore, tenants: TenantStore, fields: Fields) -> Mapping[str, Any]:
    """Make an API key; its text is in this answer and nowhere else."""
    tenant = fields.text("tenant") or "default"
    name = fields.text("name") or "unnamed"
    role = Role(fields.choice("role", [role.value for role in Role]) or Role.USER)
    key = await keys.create(tenant, name, role)
    policy = await tenants.policy(tenant)
    privacy = policy.privacy.value if policy else None
    return {"key": key, "tenant": tenant, "name": name, "role": role.value, "privacy": privacy}


async def list_keys(keys: KeyStore) -> Mapping[str, Any]:
    """Every key by its id, never its text."""
    return {"keys": [_row(entry) for entry in await keys.list()]}


async def revoke_key(
    keys: KeyStore, authenticator: Authenticator, caller: Caller, key_id: str
) -> Mapping[str, Any]:
    """Refuse a key from now on. Who asks does not lock themselves out."""
    if key_id == caller.key_id:
        raise ShoalError(
            Reason.INVALID_ARGUMENT,
            f"The key {key_id} is the one that this call was made with. Make another admin key "
            "and revoke it with that.",
            param="key",
        )
    entry = await keys.revoke(key_id)
    if entry is None:
        raise ShoalError(
            Reason.MODEL_NOT_FOUND,
            f"There is no key {key_id[:100]!a}. Ids are shown by `shoal keys list`.",
            param="key",
        )
    authenticator.forget()
    return _row(entry)


def _row(entry: KeyEntry) -> dict[str, Any]:
    return {
        "id": entry.key_id,
        "tenant": entry.tenant,
        "name": entry.name,
        "role": entry.role.value,
        "created_unix_ms": entry.created_unix_ms,
        "revoked_unix_ms": entry.revoked_unix_ms,
    }
