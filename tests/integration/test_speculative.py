from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.v1 import inference_pb2 as pb
from tests.harness.cloud_node import (
    Certificates,
    drafting_engine,
    lost_at_first_draft,
    make_certificates,
    running_node,
)
from tests.harness.engine_process import Answer, EngineProcess, engine_client
from tests.harness.models import smollm2_file
from tests.harness.tiny_llama_model import write_tiny_llama_model

FLAGS = ("--slots", "2", "--context", "512", "--no-measure", "--no-prefix-cache")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("spec"))


@pytest.fixture(scope="module")
def node(certificates: Certificates) -> Iterator[str]:
    with running_node(certificates.home, smollm2_file(), *FLAGS) as address:
        yield address


@pytest.fixture(scope="module")
def device(certificates: Certificates) -> Iterator[EngineProcess]:
    with drafting_engine(certificates, smollm2_file(), *FLAGS) as engine:
        yield engine


def request(
    verifier: str = "", *, temperature: float = 0.0, **fields: object
) -> pb.GenerateRequest:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="Name three fish.")])
    made = pb.GenerateRequest(
        chat=chat, sampling=pb.Sampling(temperature=temperature, seed=7), max_tokens=24, **fields
    )
    if verifier:
        made.hints.privacy = pb.PRIVACY_ANY
        made.speculation.verifier = verifier
        made.speculation.target = "target"
    return made


async def answers(device: EngineProcess, *requests: pb.GenerateRequest) -> list[Answer]:
    async with engine_client(device) as client:
        ids = [await client.submit(each) for each in requests]
        return [await client.answer(each) for each in ids]


async def test_drafted_greedy_text_equals_the_targets_own(node: str, device: EngineProcess) -> None:
    alone, drafted = await answers(device, request(), request(node))
    assert drafted.text == alone.text
    assert drafted.tokens == alone.tokens
    told = drafted.finished.speculated
    assert told.mode == "speculative"
    # Draft and target are the same model here: every draft stands. Nor is one faster than
    # the other, so that the target may go on alone after the first rounds.
    assert told.accepted_tokens == told.drafted_tokens > 0
    assert told.because
    assert sum(told.tokens_by_tier.values()) == drafted.finished.usage.completion_tokens


async def test_sampled_requests_with_penalties_end_in_good_order(
    node: str, device: EngineProcess
) -> None:
    # By another name: nothing is known of it yet, so that the first round is drafted.
    by_name = node.replace("127.0.0.1", "localhost")
    wanted = request(by_name, temperature=0.8, top_logprobs=2)
    wanted.sampling.frequency_penalty = 0.5
    wanted.sampling.top_p = 0.9
    (drafted,) = await answers(device, wanted)
    assert drafted.finished.speculated.rounds > 0
    assert len(drafted.logprobs) == len(drafted.tokens) > 0


async def test_without_its_verifier_the_device_goes_on_alone(device: EngineProcess) -> None:
    alone, drafted = await answers(device, request(), request("127.0.0.1:1"))
    assert drafted.text == alone.text
    assert drafted.finished.speculated.mode == "edge_alone"
    assert drafted.finished.speculated.fallback


async def test_verifier_that_is_lost_while_it_judges_drafts_leaves_the_device_at_work(
    certificates: Certificates, node: str, device: EngineProcess
) -> None:
    (alone,) = await answers(device, request())
    async with lost_at_first_draft(certificates, node) as address:
        (drafted,) = await answers(device, request(address))
    assert drafted.tokens == alone.tokens
    told = drafted.finished.speculated
    assert told.fallback
    assert told.mode == "edge_alone"
    assert told.tokens_by_tier["cloud"] == 1
    assert told.tokens_by_tier["edge"] == len(alone.tokens) - 1


async def test_without_its_verifier_the_request_fails_for_the_cloud_to_take_it(
    device: EngineProcess,
) -> None:
    wanted = request("127.0.0.1:1")
    wanted.speculation.fallback = pb.SPECULATION_FALLBACK_CLOUD
    (answer,) = await answers(device, wanted)
    assert answer.failed.reason == pb.FAILURE_REASON_UPSTREAM


async def test_node_that_serves_another_model_is_not_taken_for_the_target(
    node: str, device: EngineProcess
) -> None:
    wanted = request(node)
    wanted.speculation.target = "larger"
    (drafted,) = await answers(device, wanted)
    told = drafted.finished.speculated
    assert (told.mode, told.target_passes) == ("edge_alone", 0)
    assert told.fallback == "it refused: invalid_argument (model)"


async def test_one_request_that_a_node_refuses_does_not_keep_others_from_it(
    certificates: Certificates, device: EngineProcess
) -> None:
    small = ("--slots", "1", "--context", "96", "--no-measure", "--no-prefix-cache")
    with running_node(certificates.home, smollm2_file(), *small) as address:
        too_long, misnamed = request(address), request(address)
        too_long.chat.messages[0].content = "Name three fish. " * 30
        misnamed.speculation.target = "larger"
        refused, other, served = [
            (await answers(device, each))[0].finished.speculated
            for each in (too_long, misnamed, request(address))
        ]
    assert (refused.mode, refused.fallback) == (
        "edge_alone",
        "it refused: context_length_exceeded",
    )
    assert other.fallback == "it refused: invalid_argument (model)"
    assert (served.fallback, served.tokens_by_tier["cloud"] > 0) == ("", True)


async def test_target_with_another_vocabulary_is_refused_before_it_computes(
    certificates: Certificates, device: EngineProcess, tmp_path: Path
) -> None:
    other = write_tiny_llama_model(tmp_path / "other.gguf")
    with running_node(certificates.home, other, *FLAGS) as address:
        alone, drafted = await answers(device, request(), request(address))
    assert drafted.text == alone.text
    told = drafted.finished.speculated
    assert (told.mode, told.rounds, told.target_passes) == ("edge_alone", 0, 0)
    assert "vocabulary" in told.fallback


async def test_local_requests_are_never_drafted_out(node: str, device: EngineProcess) -> None:
    wanted = request(node)
    wanted.hints.privacy = pb.PRIVACY_LOCAL_ONLY
    (answer,) = await answers(device, wanted)
    assert answer.finished.speculated.mode == "edge_alone"
    assert answer.finished.speculated.rounds == 0


async def test_all_slots_come_back(node: str, device: EngineProcess) -> None:
    async with engine_client(device) as client:
        gone = await client.submit(request(node, ignore_eos=True))
        await client.update(gone)
        await client.cancel(gone)
        assert (await client.idle()).load.running == 0
