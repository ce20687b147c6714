"""A local request leaves no word of itself in anything that a real fleet writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from shoal.home import Home
from tests.harness.fleet import Fleet

MARK = "zq7f3e9a51c2b8d4"


def written_files(fleet: Fleet) -> Iterator[Path]:
    """Everything in the state directory and beside its sockets, but models."""
    for top in (fleet.home, Home(fleet.home).sockets_dir):
        for folder, _, names in os.walk(top):
            for name in names:
                path = Path(folder) / name
                if path.is_file() and path.suffix != ".gguf":
                    yield path


def test_local_prompt_is_in_no_file_of_the_fleet(fleet: Fleet) -> None:
    text = f"My secret word is {MARK}. " * 40
    private = {"privacy": "local_only"}
    with fleet.http() as http:
        for stream in (False, True):
            body = {
                "model": fleet.model,
                "messages": [{"role": "user", "content": text, "name": MARK}],
                "max_tokens": 8,
                "stream": stream,
                "stop": [f"stop {MARK}"],
                "user": MARK,
                "shoal": private,
            }
            assert http.post("/v1/chat/completions", json=body).status_code == 200
        long = {"model": fleet.model, "prompt": text * 40, "shoal": private}
        assert http.post("/v1/completions", json=long).status_code == 400
        bad = {"model": fleet.model, "messages": [{"role": MARK, "content": text}]}
        assert http.post("/v1/chat/completions", json=bad).status_code == 400
        short = {"model": fleet.model, "prompt": text, "max_tokens": 1, "shoal": private}
        answer = http.post("/v1/completions", json=short)
        record = fleet.json("explain", answer.headers["x-shoal-request-id"])
        assert (record["mode"], record["privacy"]) == ("edge", "local_only")
        assert record["tokens_by_tier"]["edge"]["completion"] == 1
        assert answer.json()["shoal"]["tokens_by_tier"] == record["tokens_by_tier"]
    files = list(written_files(fleet))
    assert any(path.name.endswith((".aof", ".log")) for path in files)
    assert [path for path in files if MARK.encode() in path.read_bytes()] == []
