"""What no option of the command line takes, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from shoal.cli.app import app


def float_options(group: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each command's path and one of its options that take a float."""
    for each in group.registered_groups:
        assert each.typer_instance is not None
        yield from float_options(each.typer_instance, (*path, str(each.name)))
    for command in group.registered_commands:
        function = command.callback
        assert function is not None
        name = command.name or function.__name__.replace("_", "-")
        for parameter, hint in get_type_hints(function).items():
            if hint in (float, float | None):
                yield *path, name, "--" + parameter.replace("_", "-")


OPTIONS = sorted(float_options(app))


def test_options_are_found() -> None:
    assert ("tenants", "set", "--money-per-day") in OPTIONS
    assert ("agent", "calibrate", "--limit-s") in OPTIONS


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e999"])
@pytest.mark.parametrize("option", OPTIONS, ids=" ".join)
def test_what_is_no_finite_number_is_refused_by_name(option: tuple[str, ...], value: str) -> None:
    *path, name = option
    ended = CliRunner().invoke(app, [*path, f"{name}={value}"])
    assert ended.exit_code == 2, ended.output
    assert f"'{name}'" in ended.output
    assert isinstance(ended.exception, SystemExit)


@pytest.mark.parametrize("option", [o for o in OPTIONS if o[-1] != "--weight"], ids=" ".join)
def test_a_negative_number_is_refused_by_name(option: tuple[str, ...]) -> None:
    *path, name = option
    ended = CliRunner().invoke(app, [*path, f"{name}=-1"])
    assert ended.exit_code == 2, ended.output
    assert f"'{name}'" in ended.output
