"""What `shoal devices` says of a device."""

from __future__ import annotations

from rich.console import Console

from shoal.cli.inspect import _device_table


def line_of(**more: object) -> str:
    device = {"id": "1", "name": "pi", "state": "READY", "class": "arm_cpu", "models": [], **more}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_device_table([device]))
    return captured.get().splitlines()[-1]


def test_clock_that_is_off_is_shown_and_a_good_one_is_not() -> None:
    assert "READY, clock 240 s behind" in line_of(clock_skew_ms=-240_000)
    assert "READY, clock 12 s ahead" in line_of(clock_skew_ms=12_000)
    assert "clock" not in line_of(clock_skew_ms=900)


def test_suspected_model_is_shown_with_the_reason() -> None:
    models = [
        {"name": "a", "state": "READY", "condition": "suspect: no token for 3.2 s, expected 0.4 s"},
        {"name": "b", "state": "READY", "condition": ""},
        {"name": "c", "state": "LOADING", "condition": ""},
    ]
    device = {"id": "1", "name": "pi", "state": "READY", "class": "arm_cpu", "models": models}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_device_table([device]))
    line = captured.get().splitlines()[-1]
    assert "a (suspect: no token for 3.2 s, expected 0.4 s), b, c (loading)" in line
