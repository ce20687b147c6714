"""From updates to a response: streamed as they come, or gathered into one body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from shoal.http.bodies import header_text, json_response
from shoal.http.choices import Batch, RunningChoices, ends
from shoal.openai.answer import Choice, answer_body
from shoal.openai.outcome import Outcome
from shoal.openai.request import TextRequest
from shoal.openai.sse import ResponseHead, StreamRenderer

SendMessage = Callable[[Mapping[str, Any]], Awaitable[None]]
SendResponse = Callable[[Response], Awaitable[None]]
Run = tuple[RunningChoices, Sequence[Outcome]]


async def send_answer(
    send: SendResponse, head: ResponseHead, request: TextRequest, run: Run
) -> None:
    """Gather all choices and answer once; raises the first failure."""
    running, outcomes = run
    choices = [Choice(outcome, _echo(request, index)) for index, outcome in enumerate(outcomes)]
    unfinished = len(choices)
    while unfinished:
        index, updates = await running.take()
        outcomes[index].follow(running.generations[index])
        for update in updates:
            choices[index].take(update)
        if ends(updates):
            unfinished -= 1
    body = answer_body(head, request, choices)
    await send(json_response(body, headers=_headers(outcomes)))


async def send_stream(
    send: SendMessage, head: ResponseHead, request: TextRequest, run: Run
) -> None:
    """Stream the choices; headers go out with the first text, so that a failure
    before it has its true status. Raises failures; the caller reports them."""
    running, outcomes = run
    renderer = StreamRenderer(head, request)
    begun = [False] * len(outcomes)
    unfinished = len(outcomes)
    started = False
    while unfinished:
        index, updates = await running.take()
        outcomes[index].follow(running.generations[index])
        # Parts of a failed batch still reach the client before its failure does.
        failure_follows = updates[-1].HasField("failed")
        text = _render(renderer, (index, updates), outcomes)
        if text and not (failure_follows and not started):
            if not started:
                await send(_stream_start(outcomes))
                started = True
            if not begun[index]:
                begun[index] = True
                text = renderer.begin(index, _echo(request, index)) + text
            await send(_part(text.encode("ascii")))
        if ends(updates):
            unfinished -= 1
    await send({"type": "http.response.body", "body": renderer.end(outcomes), "more_body": False})


def _render(
    renderer: StreamRenderer,
    news: tuple[int, Batch],
    outcomes: Sequence[Outcome],
) -> str:
    index, updates = news
    parts: list[str] = []
    for update in updates:
        outcomes[index].take(update)
        if update.HasField("restarted"):
            parts.append(renderer.restart(index, update.restarted))
        if update.HasField("delta"):
            parts.append(renderer.delta(index, update.delta))
        if update.HasField("finished"):
            parts.append(renderer.finish(index, outcomes))
    return "".join(parts)


def _part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _stream_start(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        # Told to proxies in front, which would else gather events.
        "x-accel-buffering": "no",
        **_headers(outcomes),
    }
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": raw}


def _headers(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Where the first choice that has a place went, and why."""
    first = next((outcome for outcome in outcomes if outcome.placed), outcomes[0])
    headers = {"x-shoal-request-id": outcomes[0].request_id, "x-shoal-tier": first.tier}
    if first.placed is not None:
        headers["x-shoal-device"] = header_text(first.placed.device_name)
        headers["x-shoal-reason"] = header_text(first.placed.reason)
    return headers


def _echo(request: TextRequest, index: int) -> str:
    prompt = request.prompts[index // request.num_choices]
    return prompt if request.echo and isinstance(prompt, str) else ""
