"""Sharing as its owner set it, and as it is told upwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.kv.redis_client import shared_client
from agent.kv.sharing import NotShared, SharedTierConfig
from agent.llama.serve import parse_arguments
from agent.rpc.convert import sharing_conditions
from agent.rpc.engine_process import EngineSpec, engine_command
from agent.session.config import read_config
from orchestrator.gateway.fleet_metrics import FleetMetrics
from shoal.kv_sharing import SharePolicy
from shoal.v1 import inference_pb2 as pb


def test_what_the_agent_was_told_reaches_its_engines() -> None:
    config = read_config(["--name", "pi", "--kv-share", "on_second_use", "--kv-write-limit", "2.5"])
    spec = EngineSpec("m", Path("m.gguf"), Path("s"), kv_sharing=config.kv_sharing)
    command = engine_command(spec)
    cache = parse_arguments(command[command.index("agent.llama.serve") + 1 :]).prefix_cache
    assert cache is not None
    assert cache.share_policy is SharePolicy.ON_SECOND_USE
    assert cache.share_bytes_per_s == 2_500_000


def test_nothing_said_leaves_both_to_the_engine() -> None:
    assert read_config(["--name", "pi"]).kv_sharing == ()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--kv-share", "sometimes", "always, on_second_use, never"),
        ("--kv-write-limit", "-1", "MB/s"),
        ("--kv-write-limit", "nan", "MB/s"),
        ("--kv-write-limit", "fast", "not a number"),
        ("--kv-write-limit", "1e12", "100000"),
    ],
)
def test_a_wrong_value_is_refused_by_the_options_name(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_config(["--name", "pi", f"{option}={value}"])
    error = capsys.readouterr().err
    assert option in error
    assert words in error


def load(reason: str) -> pb.EngineLoad:
    return pb.EngineLoad(kv_sharing=pb.KvSharing(policy="always", not_shared=reason))


def test_only_faults_become_conditions_of_the_device() -> None:
    engines = [load(each) for each in ("", NotShared.POLICY_NEVER, NotShared.AUTH_FAILED)]
    assert sharing_conditions(engines) == ["kv_sharing_auth_failed"]
    assert sharing_conditions([pb.EngineLoad()]) == []


def test_metrics_name_the_policy_and_the_reason() -> None:
    told = {"policy": "never", "write_bytes_per_s": "0", "not_shared": "policy_never"}
    model = {"name": "m", "load": {"kv_sharing": told, "counters": {}}}
    device = {"name": "d", "state": "READY", "class": "x86_cpu", "load": None, "models": [model]}
    families = {family.name: family for family in FleetMetrics([device]).collect()}
    (sample,) = families["shoal_engine_kv_sharing"].samples
    assert (sample.labels["policy"], sample.labels["not_shared"]) == ("never", "policy_never")


@pytest.mark.parametrize("url", ["redis://cache:6379", "rediss://cache:6379", "unix:///run/cache"])
def test_a_block_is_sent_as_it_lies_and_not_copied(url: str) -> None:
    block = bytes(3_000_000)
    client = shared_client(SharedTierConfig(url=url), timeout_s=1.0)
    connection = client.connection_pool.make_connection()
    pieces = connection.pack_command("SET", "shoal:block", block)
    assert any(piece is block for piece in pieces)
    assert b"".join(pieces).startswith(b"*3\r\n$3\r\nSET\r\n$11\r\nshoal:block\r\n$3000000\r\n")
