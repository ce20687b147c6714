"""Values that would break later, or mean something else, are refused at once, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.dispatch.cloud_http import EndpointClient
from orchestrator.dispatch.config import CloudConfigError, load_cloud_config
from tests.harness.tiny_llama_model import write_tiny_llama_model

MODEL = '[[endpoint.model]]\nname = "m"\nnum_parameters = 8\n'
DRAFTED = {"name": '"d"', "draft": '"s"', "verifier": '"h:1"'}
VLLM = {"name": '"v"', "source": '"s"', "accelerator": '"H100"', "num_parameters": "8"}


def endpoint(field: str = "", model: str = "") -> str:
    url = "" if field.startswith("url") else 'url = "http://x/v1"\n'
    return f"[[endpoint]]\n{url}{field}\n{MODEL}{model}\n"


def table(kind: str, fields: dict[str, str], **changed: str) -> str:
    rows = "".join(f"{name} = {value}\n" for name, value in {**fields, **changed}.items())
    return f"[[{kind}]]\n{rows}"


def drafted(**changed: str) -> str:
    return table("drafted", DRAFTED, **changed)


def read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text(text)
    load_cloud_config(file)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        # Would fail in the gateway's HTTP client.
        (endpoint('url = "http://x:abc/v1"'), "'url'"),
        (endpoint('url = "http://[::1/v1"'), "'url'"),
        (endpoint('url = "http://999.1.1.1/v1"'), "'url'"),
        (endpoint('url = "http://x:99999/v1"'), "'url'"),
        (endpoint('url = "http://x y/v1"'), "'url'"),
        (endpoint('url = "http://x/v1?key=1"'), "'url'"),
        (endpoint('url = "http://ü.example/v1"'), "'url'"),
        (endpoint('key = "schlüssel"'), "'key'"),
        (endpoint('key = "one\\ntwo"'), "'key'"),
        (endpoint('key = ""'), "'key'"),
        (endpoint("key = 5"), "'key'"),
        (endpoint('key = "a"\nkey_file = "b"'), "'key' and 'key_file'"),
        (endpoint('key_file = "missing"'), "'key_file'"),
        (endpoint('ca_file = "missing.pem"'), "'ca_file'.*missing.pem"),
        (endpoint('ca_file = "cloud.toml"'), "'ca_file'"),
        # Numbers that are none, or not whole.
        ("default_max_tokens = inf\n" + endpoint(), "'default_max_tokens'"),
        ("default_max_tokens = 0.5\n" + endpoint(), "'default_max_tokens'"),
        (endpoint("breaker = {failures_to_open = inf}"), "breaker: 'failures_to_open'"),
        (endpoint("breaker = {failures_to_open = 0.5}"), "breaker: 'failures_to_open'"),
        (endpoint("max_connections = inf"), "'max_connections'"),
        (endpoint("max_connections = 0.5"), "'max_connections'"),
        (endpoint("weight = nan"), "'weight'"),
        (endpoint("weight = inf"), "'weight'"),
        (endpoint("timeouts = {chunk_s = nan}"), "timeouts: 'chunk_s'"),
        (endpoint("timeouts = {total_s = inf}"), "timeouts: 'total_s'"),
        ("[retry]\nmax_tries = 0.5\n" + endpoint(), "retry: 'max_tries'"),
        (endpoint(model="context_tokens = -1"), "model m: 'context_tokens'"),
        (endpoint(model="input_per_million = nan\noutput_per_million = 1"), "input_per_million"),
        (endpoint().replace("= 8", "= true"), "'num_parameters'"),
        (endpoint("name = 7"), "'name'"),
        (endpoint(model="upstream = 7"), "'upstream'"),
        # Names.
        (endpoint() + MODEL, "'m' twice"),
        (endpoint().replace("[[endpoint]]", "[endpoint]"), r"write \[\[endpoint\]\]"),
        (endpoint('name = "vllm-v"') + table("vllm", VLLM, url='"http://y"'), "'vllm-v'"),
        (drafted() + '[[cascade]]\nname = "d"', r"'d'"),
        # Other tables.
        (drafted(fallback='["edge"]'), "drafted d: 'fallback'"),
        (drafted(timeout_s="inf"), "'timeout_s'"),
        (drafted(timeout_s="nan"), "'timeout_s'"),
        (drafted(timeout_s="1e12"), "'timeout_s'"),
        (drafted(draft='"d"'), "'draft'"),
        (drafted(verifier='":1"'), "'verifier'"),
        (drafted(verifier='"h:99999999"'), "'verifier'"),
        (drafted(verifier='"https://h:1"'), "'verifier'"),
        (drafted(verifier='"h:²"'), "'verifier'"),
        (drafted(verifier='"::1:8600"'), "'verifier'"),
        (drafted(typo="1"), "'typo'"),
        (table("vllm", VLLM, url='"foo"'), "'url'"),
        (table("vllm", VLLM, url='"http://y"', idle_s="nan"), "'idle_s'"),
        (table("vllm", VLLM, url='"http://y"', typo="1"), "'typo'"),
        ("[[cascade]]\nhold_tokens = inf", "'hold_tokens'"),
        ("[[cascade]]\nhold_tokens = 0.5", "'hold_tokens'"),
        ("[[cascade]]\nhold_s = nan", "'hold_s'"),
        ("[[cascade]]\nthreshold = nan", "'threshold'"),
        ('[[cascade]]\nname = "c"\nedge = "s"\nescalate_to = ["s"]', "'escalate_to'"),
        ('[[cascade]]\nname = "c"\nescalate_to = "c"', "'escalate_to'"),
    ],
)
def test_value_that_cannot_be_is_refused_by_name(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(CloudConfigError, match=f"cloud.toml: .*{names}"):
        read(tmp_path, text)


@pytest.mark.parametrize("content", ["", "sk-one\nsk-two\n", "sk-schlüssel", "sk-with space"])
def test_key_file_without_a_key_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "big.key").write_text(content)
    with pytest.raises(CloudConfigError, match=r"'key_file', .*big\.key") as caught:
        read(tmp_path, endpoint('key_file = "big.key"'))
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "names"),
    [('url = "foo"', "'url'"), ("idle_s = inf", "'idle_s'"), ("typo = 1", "'typo'")],
)
def test_hosted_table_is_read_by_the_same_rules(tmp_path: Path, field: str, names: str) -> None:
    write_tiny_llama_model(tmp_path / "tiny.gguf")
    text = f'[[hosted]]\nfile = "tiny.gguf"\n{field}\n'
    with pytest.raises(CloudConfigError, match=names):
        read(tmp_path, text)
    with pytest.raises(CloudConfigError, match="'hosted-tiny'"):
        read(tmp_path, endpoint('name = "hosted-tiny"') + '[[hosted]]\nfile = "tiny.gguf"\n')


@pytest.mark.parametrize(
    "text",
    [
        '[[cascade]]\nname = "c"\nedge = "s"\nescalate_to = ["l"]',
        '[privacy]\ndetector = "presidio"',
        drafted(verifier='"[::1]:8600"'),
    ],
)
def test_file_without_an_endpoint_is_enough(tmp_path: Path, text: str) -> None:
    read(tmp_path, text)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000/v1", "https://[::1]:8443/v1", "http://my_host/v1",
     "https://xn--bcher-kva.example./v1"],
)  # fmt: skip
async def test_what_is_taken_the_client_takes_too(tmp_path: Path, url: str) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text(endpoint(f'url = "{url}"\nkey = "sk-~!"'))
    await EndpointClient(load_cloud_config(file).endpoints[0]).close()
