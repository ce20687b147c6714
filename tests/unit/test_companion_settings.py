from __future__ import annotations

from pathlib import Path

import pytest

from agent.companion.settings import (
    CompanionError,
    find_companion,
    parameters_in,
    read_companions,
)


def described(folder: Path, text: str) -> str:
    file = folder / "companions.toml"
    file.write_text(text)
    return str(file)


def test_a_url_names_a_running_server_and_its_model() -> None:
    (companion,) = read_companions("http://127.0.0.1:11434/v1#Llama3.2:1b")
    assert companion.name == "llama3.2-1b"
    assert companion.upstream_model == "Llama3.2:1b"
    assert companion.command == ()
    assert not companion.is_remote


def test_a_file_describes_several(tmp_path: Path) -> None:
    text = """
    [[companion]]
    name = "qwen"
    url = "http://[::1]:8080/v1/"
    model = "qwen2.5-1.5b-rkllm"
    class = "npu"
    command = ["rkllm-server", "--port", "8080"]
    parameters = "1.5B"
    body = { top_k = 1 }
    [[companion]]
    url = "http://localhost:8081/v1"
    model = "other"
    parameters = 7
    """
    first, second = read_companions(described(tmp_path, text))
    assert (first.url, first.num_parameters) == ("http://[::1]:8080/v1", 1_500_000_000)
    assert first.command[0] == "rkllm-server"
    assert find_companion(described(tmp_path, text), "other") == second


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('url = "http://10.0.0.9:1/v1"', "url"),
        ('url = "http://example.org/v1"', "url"),
        ('url = "http://127.0.0.1.example.org/v1"', "url"),
        ('health_url = "http://10.0.0.9/health"', "health_url"),
        ('url = "file:///etc/passwd"', "url"),
        ("slots = 0", "slots"),
        ("slots = true", "slots"),
        ('class = "tpu"', "class"),
        ('command = "a b"', "command"),
        ('parameters = "many"', "parameters"),
        ("colour = 1", "colour"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, named: str) -> None:
    text = f'[[companion]]\nmodel = "m-1b"\n{line}\n'
    if not line.startswith("url"):
        text += 'url = "http://127.0.0.1/v1"\n'
    with pytest.raises(CompanionError, match=named):
        read_companions(described(tmp_path, text))


def test_another_machine_is_allowed_only_in_so_many_words(tmp_path: Path) -> None:
    text = '[[companion]]\nurl = "http://10.0.0.9/v1"\nmodel = "m"\nallow_remote = true\n'
    (companion,) = read_companions(described(tmp_path, text))
    assert companion.is_remote


@pytest.mark.parametrize("text", ["", "[companion]\nurl = 1", "= nonsense", "other = 1"])
def test_a_file_without_companions_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CompanionError):
        read_companions(described(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama3.2:1b", 10**9),
        ("Qwen2.5-0.5B-Instruct", 5 * 10**8),
        ("SmolLM2-135M", 135_000_000),
        ("1.5B", 1_500_000_000),
        ("gpt2", 0),
        ("model-b16", 0),
    ],
)
def test_size_is_read_from_a_models_name(name: str, parameters: int) -> None:
    assert parameters_in(name) == parameters
