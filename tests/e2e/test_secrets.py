"""Marked secrets go through a fleet whose every process logs at debug; no log has them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from shoal.home import Home
from tests.harness.fleet import SHOAL, Fleet, wait_for

PROMPT = "PLANTED-PROMPT-zebra-4711"
WRONG_KEY = "sk-shoal-PLANTED-KEY-0815"


def log_files(fleet: Fleet) -> Iterator[Path]:
    """Every log of the fleet, Ray's too, which lie beside its sockets while it runs."""
    home = Home(fleet.home)
    for root in (home.logs_dir, home.sockets_dir / "ray" / "session_latest" / "logs"):
        yield from (path for path in root.rglob("*") if path.is_file())


def chat(fleet: Fleet, *, key: str | None = None, **changes: object) -> tuple[int, str]:
    body = {
        "model": fleet.model, "max_tokens": 4,
        "messages": [{"role": "user", "content": f"{PROMPT} {changes.get('stream')}"}],
    }  # fmt: skip
    with fleet.http(key) as http:
        answer = http.post("/v1/chat/completions", json=body | changes)
    return answer.status_code, answer.headers.get("x-shoal-request-id", "")


def ask_in_many_ways(fleet: Fleet) -> str:
    """Prompts that are answered, streamed, refused and malformed; an answered one's id."""
    status, request_id = chat(fleet)
    assert status == 200
    assert chat(fleet, stream=True)[0] == 200
    assert chat(fleet, key=WRONG_KEY)[0] == 401
    assert chat(fleet, model=PROMPT)[0] == 404
    assert chat(fleet, temperature=PROMPT)[0] == 400
    assert chat(fleet, messages=[{"role": PROMPT, "content": [PROMPT]}])[0] == 400
    with fleet.http() as http:
        assert http.post("/v1/chat/completions", content=f'{{"{PROMPT}').status_code == 400
    return request_id


def join_in_vain(fleet: Fleet, token: str, state: Path) -> str:
    """An agent whose name is taken sends its token to the hub and is refused; what it said."""
    done = subprocess.run(
        [str(SHOAL), "agent", "run", "--join", fleet.url, "--token", token, "--name", "local-1",
         "--state-dir", str(state)],
        env=fleet.env, text=True, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 15, done.stderr
    return done.stdout + done.stderr


def secrets_of(fleet: Fleet) -> dict[str, str]:
    """What lies in the state directory and may be nowhere else; private keys by a line of them."""
    home = Home(fleet.home)
    shared = json.loads((home.agent_dir("local-1") / "kv-shared.json").read_text())
    found = {
        "admin key": home.admin_key_file.read_text().strip(),
        "default key": home.default_key_file.read_text().strip(),
        "cache administrator's password": home.cache_admin_file.read_text().strip(),
        **{f"shared tier: {name}": str(value) for name, value in shared.items()},
    }
    # Addresses and user names are no secrets.
    found = {
        name: value for name, value in found.items() if len(value) >= 20 and "://" not in value
    }
    for name, file in (
        ("authority's key", home.ca_dir / "ca.key"),
        ("device's key", home.agent_dir("local-1") / "device.key"),
    ):
        found[name] = file.read_text().splitlines()[1]
    return found


def test_no_log_and_no_command_line_has_a_secret_or_a_prompt(fleet: Fleet, tmp_path: Path) -> None:
    token = fleet.json("token", "create")["token"]
    request_id = ask_in_many_ways(fleet)
    said = join_in_vain(fleet, token, tmp_path / "state")
    planted = secrets_of(fleet) | {
        "API key": fleet.key,
        "wrong API key": WRONG_KEY,
        "join token": token.split(".")[2],
        "prompt": PROMPT,
    }
    wait_for(
        "the request's log line",
        lambda: any(request_id.encode() in path.read_bytes() for path in log_files(fleet)),
        timeout_s=20,
    )
    texts = {str(path): path.read_bytes() for path in log_files(fleet)}
    texts["the refused agent"] = said.encode()
    for process in psutil.process_iter(["cmdline"]):
        texts[f"command line of {process.pid}"] = " ".join(process.info["cmdline"] or []).encode()
    leaks = [
        (what, where, text[max(0, text.index(secret.encode()) - 200) :][:400])
        for where, text in texts.items()
        for what, secret in planted.items()
        if secret.encode() in text
    ]
    assert not leaks
