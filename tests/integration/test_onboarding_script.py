"""The install script before it changes anything: what it refuses, and that nothing is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.onboarding import depot
from tests.harness.depot_site import TOKEN, DepotSite
from tests.harness.ports import free_port


@pytest.fixture(scope="module")
def site_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DepotSite]:
    site = DepotSite(tmp_path_factory.mktemp("depot"))
    yield site
    site.close()


@pytest.fixture
def site(site_for_all: DepotSite) -> Iterator[DepotSite]:
    honest = dict(site_for_all.pages)
    yield site_for_all
    site_for_all.pages.update(honest)


class Device:
    """A machine's place for an installation, and what was said at the last try."""

    def __init__(self, folder: Path, site: DepotSite) -> None:
        self.prefix = folder / "device"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._site = site

    def install(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Pipe the served script into a shell, as the printed line does."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")} | {
            "SHOAL_PREFIX": str(self.prefix),
            "SHOAL_USER": "root" if os.getuid() == 0 else "",
            "TMPDIR": str(self.temporary),
            **environment,
        }
        script = self._site.pages["/shoal/v1/install.sh"].decode()
        return subprocess.run(
            ["sh", "-s", "--", *options],
            input=script, text=True, capture_output=True, env=env, check=False, timeout=60,
        )  # fmt: skip

    def refuses(self, *options: str, **environment: str) -> str:
        """Install, which must fail and leave nothing; what was said."""
        done = self.install(*options, **environment)
        assert done.returncode != 0, done.stdout
        assert not self.prefix.exists()
        assert not list(self.temporary.iterdir())
        return done.stderr


@pytest.fixture
def device(tmp_path: Path, site: DepotSite) -> Device:
    return Device(tmp_path, site)


def test_dry_run_says_what_would_be_done_and_changes_nothing(device: Device) -> None:
    done = device.install("--token", TOKEN, "--name", "hall-3", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "device hall-3" in done.stdout
    assert "nothing was changed" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    assert not device.prefix.exists()
    assert not list(device.temporary.iterdir())


def test_without_a_token_it_says_how_to_get_one(device: Device) -> None:
    assert "shoal token create" in device.refuses()


def test_authority_of_another_fleet_is_refused(device: Device, site: DepotSite) -> None:
    site.set_join(ca_der=b"somebody else's")
    assert "not a join token" in device.refuses("--token", TOKEN[:-64])
    assert "in between" in device.refuses("--token", TOKEN)


def test_member_of_another_fleet_stays_there_and_is_told_so(
    device: Device, site: DepotSite
) -> None:
    state = device.prefix / "state"
    state.mkdir(parents=True)
    (device.prefix / ".shoal-agent").write_text("name=hall-3\n")
    (state / "identity.json").write_text("{}")
    (state / "ca.crt").write_text(site.ca_pem(b"another fleet's"))
    for options in ([], ["--token", TOKEN]):
        done = device.install(*options)
        assert done.returncode != 0, done.stdout
        assert "member of another fleet" in done.stderr
        assert f"{device.prefix}/shoal-agent uninstall" in done.stderr
    assert not (device.prefix / "agent.args").exists()
    (state / "ca.crt").write_text(site.ca_pem())
    done = device.install("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "has joined before" in done.stdout


def test_changed_wheel_is_not_installed(device: Device, site: DepotSite) -> None:
    wheel = site.depot.files[0].name
    site.pages[f"/shoal/v1/agent/{wheel}"] += b"x"
    assert "wrong SHA-256" in device.refuses("--token", TOKEN)


def test_list_of_files_that_does_not_fit_the_script_is_refused(
    device: Device, site: DepotSite
) -> None:
    site.pages["/shoal/v1/agent/SHA256SUMS"] += b"0" * 64 + b"  more\n"
    assert "does not fit this script" in device.refuses("--token", TOKEN)


def test_closed_port_of_the_hub_is_named(device: Device, site: DepotSite) -> None:
    closed = f"127.0.0.1:{free_port()}"
    site.set_join(hub=closed)
    said = device.refuses("--token", TOKEN)
    assert closed in said
    assert "firewall" in said


def test_without_python_the_remedy_is_this_distributions(device: Device) -> None:
    said = device.refuses("--token", TOKEN, SHOAL_PYTHON="/nonexistent/python")
    assert "Python 3.11" in said
    assert "remedy:" in said


def test_folder_of_somebody_else_is_left_alone(device: Device) -> None:
    device.prefix.mkdir()
    (device.prefix / "diary.txt").touch()
    assert "is not ours" in device.install("--token", TOKEN).stderr
    assert device.install("--uninstall").returncode != 0
    assert (device.prefix / "diary.txt").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--name", "a b; reboot"], "letters, digits"),
        (["--url", "http://x/$(reboot)"], "not a gateway's URL"),
        (["--version", "9.9.9"], "9.9.9"),
        (["--colour", "red"], "unknown option"),
        (["--token"], "needs a value"),
        (["--calibrate", "often"], "auto or never"),
        (["--kv-type", "q4_0"], "f16, q8_0 or auto"),
        (["--companion", "/nonexistent/rkllm.toml"], "neither a file nor URL#MODEL"),
        (["--companion", "http://127.0.0.1:11434/v1"], "neither a file nor URL#MODEL"),
        (["--companion", "http://192.0.2.1:11434/v1#m"], "allow_remote"),
        (["--companion", ""], "--companion needs a value"),
        (["--model", ""], "--model needs a value"),
        (["--model", "nosuchmodel"], "one of: smollm2-135m-instruct"),
        (["--model", "/nonexistent/a.gguf"], "--model /nonexistent/a.gguf is neither a file"),
        (["--model", "/bin/sh"], "--model /bin/sh is no model"),
        (["--slots", "zero"], "--slots zero is not a whole number"),
        (["--slots", "0"], "--slots 0 is not a whole number"),
        (["--context", "-1"], "--context -1 is not a whole number"),
        (["--class", "toaster"], "--class toaster is no device class"),
        (["--local-api", "everywhere"], "--local-api everywhere: give PORT"),
        (["--name", "a" * 64], "1 to 63 letters"),
        (["--name", "-rf"], "1 to 63 letters"),
        (["--name", ".."], "1 to 63 letters"),
        (["--name", "0123456789abcdef" * 2], "look like a device id"),
    ],
)
def test_bad_options_are_named(device: Device, options: list[str], said: str) -> None:
    assert said in device.refuses("--token", TOKEN, *options)


def test_dry_run_checks_options_too(device: Device) -> None:
    assert "--slots zero" in device.refuses("--token", TOKEN, "--slots", "zero", "--dry-run")


def test_good_options_pass(device: Device, tmp_path: Path) -> None:
    companion = tmp_path / "npu.toml"
    companion.write_text(
        '[[companion]]\nmodel = "q-1.5b"\nurl = "http://127.0.0.1:8080/v1"\nclass = "npu"\n'
    )
    done = device.install(
        "--token", TOKEN, "--dry-run", "--name", "a.b-c_1", "--slots", "2", "--context", "auto",
        "--class", "npu", "--local-api", "off", "--companion", str(companion),
        "--model", "smollm2-135m-instruct",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_companion_alone_needs_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is asked for, and none of the minutes that it would take."""
    monkeypatch.setattr(depot, "engine_wheels", lambda: iter(()))
    site = DepotSite(tmp_path / "depot")
    device = Device(tmp_path, site)
    only = ("--token", TOKEN, "--dry-run", "--companion", "http://127.0.0.1:11434/v1#m-1b")
    done = device.install(*only, SHOAL_ENGINE_WHEELS=str(tmp_path / "none"))
    both = device.install(
        *only, "--model", "smollm2-135m-instruct", SHOAL_ENGINE_WHEELS=str(tmp_path / "none")
    )
    site.close()
    assert done.returncode == 0, done.stderr
    assert "only companions will serve" in done.stdout
    assert "compile" in both.stdout + both.stderr


def test_half_a_script_does_nothing(device: Device, site: DepotSite) -> None:
    whole = site.pages["/shoal/v1/install.sh"]
    site.pages["/shoal/v1/install.sh"] = whole[: len(whole) * 3 // 4]
    done = device.install("--token", TOKEN)
    assert done.returncode != 0 or not done.stdout
    assert not device.prefix.exists()
