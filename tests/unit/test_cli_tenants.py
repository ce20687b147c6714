"""What `shoal tenants` shows, and what `shoal explain` says of the cloud."""

from __future__ import annotations

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.cli.explain import cost_lines
from shoal.cli.tenants import changed, tenant_table


def test_table_shows_what_is_spent_of_each_limit() -> None:
    names = ("tokens_per_day", "tokens_per_month", "money_per_day", "money_per_month")
    tenant = {
        "tenant": "acme",
        "privacy": "local_preferred",
        "budgets": dict(zip(names, (1000, None, None, 5.5), strict=True)),
        "spent": dict(zip(names, (120, 4000, 0.002, 0.25), strict=True)),
    }
    console = Console(width=160)
    with console.capture() as captured:
        console.print(tenant_table([tenant]))
    line = captured.get().splitlines()[-1].split("  ")
    cells = [cell.strip() for cell in line if cell.strip()]
    assert cells == ["acme", "local_preferred", "120 of 1000", "4000", "0.002", "0.25 of 5.5"]


def test_change_keeps_what_is_not_named() -> None:
    known = {
        "privacy": "any",
        "budgets": {"tokens_per_day": 5, "money_per_day": None},
        "rates": {"weight": 2.0, "requests_per_minute": None},
        "defaults": {"objective": "edp", "hedge_after": None},
    }
    given = {"privacy": None, "money_per_day": 0.5, "tokens_per_day": None}
    assert changed(known, given, no_limits=False) == {
        "privacy": "any",
        "tokens_per_day": 5,
        "weight": 2.0,
        "objective": "edp",
        "money_per_day": 0.5,
    }
    assert changed(known, given, no_limits=True) == {"privacy": "any", "money_per_day": 0.5}
    assert changed(None, {"privacy": "any"}, no_limits=False) == {"privacy": "any"}


def test_explanation_names_tokens_and_money_by_tier() -> None:
    record = {
        "mode": "cloud",
        "privacy": "any",
        "tokens_by_tier": {"cloud": {"prompt": 9, "completion": 2}},
        "money_by_tier": {"cloud": {"amount": 34e-6, "currency": "USD"}},
        "usage_flags": ["usage_missing"],
    }
    assert cost_lines(record) == [
        "privacy   any",
        "used      cloud: 9 + 2 tokens, 0.000034 USD",
        "usage     usage_missing",
    ]
    assert cost_lines({}) == []


@pytest.mark.parametrize("name", ["a/b", "", "..", "a b", "x" * 64])
@pytest.mark.parametrize(
    "command",
    [
        ("tenants", "set", "{}", "--privacy", "any"),
        ("cascade", "show", "--tenant", "{}"),
        ("cascade", "calibrate", "--share", "0.2", "--tenant", "{}"),
    ],
    ids=" ".join,
)
def test_a_name_that_no_tenant_may_have_is_refused_by_the_rule(
    command: tuple[str, ...], name: str
) -> None:
    ended = CliRunner().invoke(app, [each.format(name) for each in command])
    assert ended.exit_code == 9, ended.output
    assert f"tenant {name!r}: the name must be" in ended.output


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("models remove", "model"), ("models retry", "model"), ("models undeploy", "model"),
        ("keys revoke", "key"), ("explain", "request"),
    ],
)  # fmt: skip
def test_a_name_with_a_slash_is_unknown_and_no_path(command: str, kind: str) -> None:
    ended = CliRunner().invoke(app, [*command.split(), "a/b"])
    assert ended.exit_code == 8, ended.output
    assert f"There is no {kind} 'a/b'." in ended.output
