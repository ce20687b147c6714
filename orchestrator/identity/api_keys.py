"""API keys: their text, their hash, and whom they stand for."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum

from shoal.errors import Reason, ShoalError, invalid
from shoal.tenant_names import TENANT_NAME_RULE, may_name_a_tenant

PREFIX = "sk-shoal-"
# Of a key's public name.
ID_CHARS = 12
_SHAPE = re.compile(r"sk-shoal-[A-Za-z0-9_-]{43}")


class Role(StrEnum):
    """What a key may do: `user` asks questions, `admin` also runs the fleet."""

    ADMIN = "admin"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a request comes from. `key_id` names the key in logs; it is not secret."""

    tenant: str
    name: str
    role: Role
    key_id: str

    def require_admin(self) -> None:
        """Raise PERMISSION_DENIED unless the key is an admin's."""
        if self.role is not Role.ADMIN:
            raise ShoalError(
                Reason.PERMISSION_DENIED,
                f"key {self.key_id} has role {self.role.value}; this needs an admin key",
            )


def new_key() -> str:
    """A fresh key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    """Hex SHA-256; the key has 256 random bits, so no salt or slow hash is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id_of(key: str) -> str:
    """Short public name of a key: the first `ID_CHARS` hex digits of its hash."""
    return hash_of(key)[:ID_CHARS]


def check_key(key: str | None) -> str:
    """The key, if it can be one at all; raises UNAUTHENTICATED for a missing or malformed one."""
    if not key:
        raise ShoalError(
            Reason.UNAUTHENTICATED,
            "no API key: send `Authorization: Bearer sk-shoal-...`;"
            " make one with `shoal keys create`",
        )
    if _SHAPE.fullmatch(key) is None:
        raise unknown_key()
    return key


def unknown_key() -> ShoalError:
    """The fleet does not know the key (the same whether malformed, removed or made up)."""
    return ShoalError(
        Reason.UNAUTHENTICATED, "incorrect API key; make one with `shoal keys create`"
    )


def check_label(param: str, value: str) -> str:
    """A tenant's or key's name, as it may appear in logs; raises INVALID_ARGUMENT."""
    if not may_name_a_tenant(value):
        raise invalid(param, f"{param} {TENANT_NAME_RULE}")
    return value
