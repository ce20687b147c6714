from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from agent.rpc.model_files import find_model
from agent.session.errors import AgentError, ExitCode
from shoal.model_fetch import DownloadError, download
from tests.harness.file_server import FileServer

CONTENT = bytes(range(256)) * 4096


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_broken_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m.gguf"
    server = FileServer(CONTENT, break_after=300_000)
    async with server as url:
        with pytest.raises(DownloadError):
            await download(url, digest(CONTENT), target)
        assert not target.exists()
        await download(url, digest(CONTENT), target)
    assert target.read_bytes() == CONTENT
    assert 0 < server.starts[1] <= 300_000
    assert os.listdir(target.parent) == [target.name]


async def test_server_without_ranges_sends_it_all_again(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    async with FileServer(CONTENT, break_after=300_000, ranges=False) as url:
        with pytest.raises(DownloadError):
            await download(url, digest(CONTENT), target)
        await download(url, digest(CONTENT), target)
    assert target.read_bytes() == CONTENT


async def test_wrong_hash_is_refused_and_not_kept(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    async with FileServer(CONTENT) as url:
        with pytest.raises(DownloadError, match="SHA-256"):
            await download(url, digest(b"other"), target)
    assert os.listdir(tmp_path) == []


async def test_file_that_is_here_is_not_fetched_again(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    target.write_bytes(CONTENT)
    await download("http://127.0.0.1:1/", digest(CONTENT), target)


def test_model_argument_is_a_path_or_a_name(tmp_path: Path) -> None:
    file = tmp_path / "Some-Model.Q8_0.gguf"
    file.write_bytes(b"")
    assert find_model(str(file), tmp_path / "models") == file
    assert find_model("some-model", tmp_path) == file


def test_default_model_is_found_in_its_package_without_importing_it(tmp_path: Path) -> None:
    assert find_model("smollm2-135m-instruct", tmp_path).stat().st_size > 50e6


def test_unknown_model_lists_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="pass a GGUF file") as caught:
        find_model("absent", tmp_path)
    assert caught.value.exit_code is ExitCode.MODEL_FILE
