"""`shoal chat` and `shoal tour`: ask the fleet, and see who answered."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.markup import escape

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


@dataclass(slots=True)
class Reply:
    """One answer as it comes in: its text, the response's headers, usage and extension."""

    text: str = ""
    finish_reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    extension: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "request_id": self.headers.get("x-shoal-request-id", ""),
            "text": self.text,
            "finish_reason": self.finish_reason,
            "device": self.headers.get("x-shoal-device", ""),
            "tier": self.headers.get("x-shoal-tier", ""),
            "usage": self.usage,
            "shoal": self.extension,
        }


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
    """Send, print the answer as it comes when `show`, and return it whole."""
    body = request | {"messages": messages, "stream": True}
    body["stream_options"] = {"include_usage": True}
    reply = Reply()
    for event in client.stream("/v1/chat/completions", body):
        reply.headers = event.get("headers", reply.headers)
        reply.usage = event.get("usage") or reply.usage
        reply.extension = event.get("shoal") or reply.extension
        for choice in event.get("choices", []):
            piece = choice["delta"].get("content") or ""
            reply.text += piece
            reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
            if show and piece:
                answer.print(piece, end="", markup=False, soft_wrap=True)
    if show:
        answer.print()
    return reply


def _show_decision(reply: Reply) -> None:
    actual = reply.extension.get("actual") or {}
    parts = [
        f"device {reply.headers.get('x-shoal-device', '?')}",
        f"tier {reply.headers.get('x-shoal-tier', '?')}",
        f"{reply.usage.get('completion_tokens', '?')} tokens",
        f"first after {ms_text(actual.get('ttft_ms'))}",
        f"then {ms_text(actual.get('tpot_ms'))} each",
    ]
    notes.print(f"[dim]{escape(' · '.join(parts))}[/dim]", soft_wrap=True)
    if reason := reply.headers.get("x-shoal-reason"):
        notes.print(f"[dim]decision: {escape(reason)}[/dim]", soft_wrap=True)


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
