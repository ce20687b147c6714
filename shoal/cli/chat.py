"""`shoal chat` and `shoal tour`: ask the fleet, and see who answered."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from shoal.cli.chat_reply import Reply, restart_reason
from shoal.cli.client import GatewayClient, find_endpoint
from shoal.cli.commands import reported, user_client
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.options import finite
from shoal.cli.output import JsonFlag, answer, ms_text, notes, print_json
from shoal.home import default_home

FIRST_QUESTION = "What is a shoal of fish? Answer in one sentence."
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Default: the first listed.")
]


@reported
def chat(
    prompt: Annotated[str | None, typer.Argument(help="Left out: a conversation.")] = None,
    model: ModelOption = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float | None, typer.Option(callback=finite, min=0, max=2)] = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask the fleet; without a prompt hold a conversation (end it with Ctrl-D)."""
    client = user_client()
    request: dict[str, Any] = {"model": model or _first_model(client), "max_tokens": max_tokens}
    if temperature is not None:
        request["temperature"] = temperature
    if prompt is not None:
        reply = _ask(client, request, [_message("user", prompt)], show=not as_json)
        if as_json:
            print_json(reply.to_json())
        else:
            _show_decision(reply)
        return
    if as_json:
        raise CliError(ExitCode.USAGE, "--json needs a prompt", 'shoal chat --json "Hello"')
    _converse(client, request)


@reported
def tour() -> None:
    """Ask a first question, show who answered and why, and how to go on."""
    endpoint = find_endpoint(default_home(), admin=False)
    client = GatewayClient(endpoint)
    model = _first_model(client)
    answer.print(f"\n[bold]> {FIRST_QUESTION}[/bold]")
    request = {"model": model, "max_tokens": 96, "temperature": 0}
    reply = _ask(client, request, [_message("user", FIRST_QUESTION)], show=True)
    _show_decision(reply)
    key_file = default_home().default_key_file
    request_id = reply.headers.get("x-shoal-request-id", "REQUEST_ID")
    body = json.dumps({"model": model, "messages": [_message("user", "Hello")], "stream": True})
    text = f"""
Why this device:   .venv/bin/shoal explain {request_id}
Talk to it:        .venv/bin/shoal chat
The fleet:         .venv/bin/shoal status
End it:            make stop

curl -N {endpoint.url}/v1/chat/completions \\
  -H "Authorization: Bearer $(cat '{key_file}')" \\
  -H "Content-Type: application/json" \\
  -d '{body}'

from openai import OpenAI
client = OpenAI(base_url="{endpoint.url}/v1", api_key=open("{key_file}").read().strip())
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello"}}],
    extra_body={{"shoal": {{"slo": {{"tpot_ms": 50}}}}}},
)
print(answer.choices[0].message.content)
"""
    answer.print(escape(text), soft_wrap=True)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _first_model(client: GatewayClient) -> str:
    """One that a device serves as it is, before the cloud's, cascades and drafted models."""
    listed = client.get("/v1/models")["data"]
    listed.sort(
        key=lambda model: (
            bool({"cascade", "drafted_by"} & model["shoal"].keys()),
            "edge" not in model["shoal"]["tiers"],
        )
    )
    if not listed:
        raise CliError(
            ExitCode.BUSY, "No device serves a model now.", "See `shoal status` and `shoal doctor`."
        )
    return str(listed[0]["id"])


def _ask(
    client: GatewayClient, request: dict[str, Any], messages: list[dict[str, str]], *, show: bool
) -> Reply:
    """Send, print the answer when `show`, and return it whole.

    A terminal gets it as it comes; what reads from a pipe gets it at its end, without what a
    cascade took back.
    """
    body = request | {"messages": messages, "stream": True}
    body["stream_options"] = {"include_usage": True}
    reply, is_live = Reply(), show and answer.is_terminal
    try:
        for event in client.stream("/v1/chat/completions", body):
            if show and (why := restart_reason(event)) is not None:
                _tell_restart(reply, why)
            piece = reply.take(event)
            if is_live and piece:
                answer.print(piece, end="", markup=False, soft_wrap=True)
    finally:
        if show and (reply.text or reply.finish_reason):
            answer.print("" if is_live else reply.text, markup=False, soft_wrap=True)
    return reply


def _tell_restart(reply: Reply, why: str) -> None:
    if not reply.text:
        return
    if answer.is_terminal:
        answer.print()
    told = f"That did not stand ({escape(why)}): the answer begins anew."
    notes.print(f"[yellow]{told}[/yellow]", soft_wrap=True)


def _show_decision(reply: Reply) -> None:
    actual = reply.extension.get("actual") or {}
    parts = [
        f"device {reply.device or '-'}",
        f"tier {reply.tier or '?'}",
        f"{reply.usage.get('completion_tokens', '?')} tokens",
        f"first after {ms_text(actual.get('ttft_ms'))}",
        f"then {ms_text(actual.get('tpot_ms'))} each",
    ]
    notes.print(f"[dim]{escape(' · '.join(parts))}[/dim]", soft_wrap=True)
    if reply.reason:
        notes.print(f"[dim]decision: {escape(reply.reason)}[/dim]", soft_wrap=True)


def _converse(client: GatewayClient, request: dict[str, Any]) -> None:
    messages: list[dict[str, str]] = []
    while True:
        try:
            question = answer.input("[bold]> [/bold]")
        except EOFError:
            answer.print()
            return
        if not question.strip():
            continue
        messages.append(_message("user", question))
        reply = _ask(client, request, messages, show=True)
        messages.append(_message("assistant", reply.text))
        _show_decision(reply)
