"""A process that renders one model's chat template, and nothing else.

The template comes with the model file and is not trusted. It runs in jinja2's
sandbox, in a process of its own whose memory is bounded and whom the kernel's
alarm kills when a rendering takes too long, even inside one endless C call.

Protocol, one JSON object a line: first {"template", "bos", "eos", "limit_s"} in and
{"ok"} or {"error"} out; then {"messages", "tools"} in, {"text"} or {"error"} out.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from typing import IO, Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Python and jinja2 take some 60 MB of address space beyond what a long chat needs.
MEMORY_LIMIT_BYTES = 1 << 30
# A rendered chat: its messages and tools, framed. More is the template's own making, and
# would have to be held by the engine several times over.
MIN_TEXT_LIMIT_CHARS = 1 << 20
GROWTH_LIMIT = 4


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
) -> str:
    """HF's filter: unlike jinja2's own it escapes nothing for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def compile_template(source: str) -> jinja2.Template:
    """The template with the settings and helpers that HF's chat templates expect.

    Raises jinja2.TemplateError for a malformed one.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until their stream ends."""
    setup = json.loads(requests.readline())
    limit_s: float = setup["limit_s"]
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        template = compile_template(setup["template"])
    except Exception as error:  # noqa: BLE001 - compiling folds constants, which may raise anything
        _reply(replies, {"error": f"{type(error).__name__}: {error}"[:500]})
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    _reply(replies, {"ok": True})
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            text = template.render(
                messages=request["messages"],
                tools=request["tools"],
                add_generation_prompt=True,
                bos_token=setup["bos"],
                eos_token=setup["eos"],
            )
            longest = MIN_TEXT_LIMIT_CHARS + GROWTH_LIMIT * len(line)
            reply = {"text": text}
            if len(text) > longest:
                reply = {"error": f"it makes {len(text)} characters of them, over {longest}"}
        except Exception as error:  # noqa: BLE001 - a template may raise anything; the reply says what
            reply = {"error": str(error)[:500] or type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, reply)


def _reply(replies: IO[bytes], reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


def main() -> None:
    """Entry point; ends when the engine closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    # What got out of the sandbox would still write no file and start no process.
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
