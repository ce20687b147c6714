"""Names as parts of the gateway's addresses."""

from __future__ import annotations

from urllib.parse import quote

from shoal.cli.exit_codes import CliError, ExitCode
from shoal.tenant_names import TENANT_NAME_RULE, may_name_a_tenant


def part(name: str, kind: str) -> str:
    """The name, percent-encoded; CliError NOT_FOUND where no address has room for it.

    `kind` says what it names: `device`, `model`.
    """
    # A gateway decodes a path before it looks for its parts.
    if "/" in name or name in ("", ".", ".."):
        raise CliError(ExitCode.NOT_FOUND, f"There is no {kind} {name[:100]!r}.")
    return quote(name, safe="")


def tenant_part(tenant: str) -> str:
    """The tenant's name, if the gateway takes it; else CliError REFUSED, as it would be there."""
    if not may_name_a_tenant(tenant):
        raise CliError(ExitCode.REFUSED, f"tenant {tenant[:100]!r}: the name {TENANT_NAME_RULE}.")
    return quote(tenant, safe="")
