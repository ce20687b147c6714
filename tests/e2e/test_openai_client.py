"""The official client works unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.harness.fleet import Fleet, wait_for

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key, max_retries=0) as client:
        yield client


def running(fleet: Fleet) -> int:
    with fleet.http() as http:
        return int(
            http.get(
                "/shoal/v1/status", headers={"Authorization": f"Bearer {admin_key(fleet)}"}
            ).json()["running"]
        )


def admin_key(fleet: Fleet) -> str:
    return (fleet.home / "keys" / "admin.key").read_text().strip()


def test_answer_in_one_piece(fleet: Fleet, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=fleet.model, messages=QUESTION, temperature=0, max_tokens=32
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_equals_the_answer_in_one_piece(fleet: Fleet, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=fleet.model, messages=QUESTION, temperature=0, max_tokens=48
    )
    chunks = list(
        client.chat.completions.create(
            model=fleet.model, messages=QUESTION, temperature=0, max_tokens=48,
            stream=True, stream_options={"include_usage": True},
        )
    )  # fmt: skip
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert len({chunk.id for chunk in chunks}) == 1
    assert [d.delta.role for d in deltas if d.delta.role] == ["assistant"]
    assert [d.finish_reason for d in deltas if d.finish_reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    usages = [usage for usage in (chunks[-1].usage, whole.usage) if usage]
    # What was cached is another matter: it depends on who asked before, and of which device.
    streamed, at_once = [(u.prompt_tokens, u.completion_tokens, u.total_tokens) for u in usages]
    assert streamed == at_once
    text = "".join(d.delta.content or "" for d in deltas)
    assert text == whole.choices[0].message.content


def test_two_async_clients_at_once_get_their_own_answers(fleet: Fleet) -> None:
    async def ask(word: str) -> str:
        async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key) as client:
            stream = await client.chat.completions.create(
                model=fleet.model, temperature=0, max_tokens=24, stream=True,
                messages=[{"role": "user", "content": f"Repeat this word: {word}"}],
            )  # fmt: skip
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def both() -> list[str]:
        return list(await asyncio.gather(ask("elephant"), ask("volcano")))

    first, second = asyncio.run(both())
    assert "elephant" in first.lower()
    assert "volcano" in second.lower()


def test_a_client_that_goes_away_frees_its_slot(fleet: Fleet, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=fleet.model, messages=QUESTION, max_tokens=1500, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    wait_for("the request is seen to run", lambda: running(fleet) == 1, timeout_s=5)
    stream.close()
    wait_for("the slot is free", lambda: running(fleet) == 0, timeout_s=5)


def test_logprobs_are_those_of_the_chosen_tokens(fleet: Fleet, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=fleet.model, messages=QUESTION, temperature=0, max_tokens=8,
        logprobs=True, top_logprobs=3,
    )  # fmt: skip
    content = answer.choices[0].logprobs
    assert content is not None
    assert content.content is not None
    assert answer.usage is not None
    assert len(content.content) >= answer.usage.completion_tokens - 1
    for token in content.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert token.token == token.top_logprobs[0].token


def test_routing_hints_go_through_extra_body_and_come_back_explained(
    fleet: Fleet, client: openai.OpenAI
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=fleet.model, messages=QUESTION, max_tokens=8,
        extra_body={"shoal": {"slo": {"tpot_ms": 500}, "privacy": "local_only"}},
    )  # fmt: skip
    device = fleet.status()["devices"][0]
    assert raw.headers["x-shoal-tier"] == "edge"
    assert raw.headers["x-shoal-device"] == device["name"]
    request_id = raw.headers["x-shoal-request-id"]
    record = fleet.json("explain", request_id)
    assert record["request_id"] == request_id
    assert record["model"] == fleet.model
    assert record["candidates"]


def test_models_are_listed(fleet: Fleet, client: openai.OpenAI) -> None:
    assert fleet.model in [model.id for model in client.models.list()]


def test_a_wrong_key_is_refused(fleet: Fleet) -> None:
    with (
        openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="sk-shoal-wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert caught.value.code == "model_not_found"
