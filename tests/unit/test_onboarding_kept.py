"""What a second run of install.sh keeps, and how it is put back to its default."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shoal.onboarding import script

SOURCE = Path(script.__file__).with_name("install.sh").read_text(encoding="utf-8")
LAST_LINE = 'main "$@" </dev/null\n'
SETTLED = [
    "name",
    "account",
    "service",
    "class",
    "slots",
    "context",
    "local_api",
    "kv_type",
    "models",
    "companions",
]
COMPANION = "http://127.0.0.1:11434/v1#m-1b"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """What a run with every option has left; the device has not joined."""
    prefix = tmp_path / "device"
    prefix.mkdir()
    (prefix / ".shoal-agent").write_text(
        "name=hall-3\nurl=http://x\nuser=ann\nservice=none\nservice_asked=none\n"
    )
    arguments = ["--join", "http://x", "--name", "hall-3", "--model", "/m/a.gguf"]
    arguments += ["--companion", COMPANION, "--class", "npu", "--slots", "2", "--context", "512"]
    arguments += ["--kv-type", "q8_0", "--local-api", "off"]
    (prefix / "agent.args").write_text("".join(f"{each}\n" for each in arguments))
    return prefix


def settled(prefix: Path, *options: str) -> dict[str, str]:
    """What root's second run settles on."""
    shown = "\n".join(f"echo {name}=$(printf '%s ' ${name})" for name in SETTLED)
    run = f"""
        id() {{ echo 0; }}
        read_settings --prefix '{prefix}' --token t --url http://x "$@"
        settle_names
        {shown}
    """
    done = subprocess.run(
        ["sh", "-s", "--", *options], input=SOURCE.removesuffix(LAST_LINE) + run, text=True,
        capture_output=True, check=False, timeout=60, env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in pairs}


def test_all_is_kept_that_is_not_given(prefix: Path) -> None:
    assert settled(prefix) == {
        "name": "hall-3", "account": "ann", "service": "none", "class": "npu", "slots": "2",
        "context": "512", "local_api": "off", "kv_type": "q8_0", "models": "/m/a.gguf",
        "companions": COMPANION,
    }  # fmt: skip


def test_what_is_given_counts(prefix: Path) -> None:
    given = settled(
        prefix, "--name", "hall-4", "--user", "bob", "--service", "auto", "--slots", "4"
    )
    assert (given["name"], given["account"], given["service"]) == ("hall-4", "bob", "auto")
    assert (given["slots"], given["context"]) == ("4", "512")


def test_defaults_come_back(prefix: Path) -> None:
    given = settled(
        prefix, "--model", "none", "--companion", "none", "--class", "auto", "--slots", "auto",
        "--context", "auto",
    )  # fmt: skip
    assert given["models"] == "smollm2-135m-instruct"
    assert given["companions"] == given["class"] == given["slots"] == given["context"] == ""
    assert settled(prefix, "--model", "none")["models"] == ""
