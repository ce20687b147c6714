"""A small OpenAI-compatible server process: `python companion_server.py --port P [...]`.

What it answers is in the last word of the prompt: `hold` streams until the client goes, `die`
ends the process with SIGKILL in the middle of the answer, `refuse` gets HTTP 400; anything
else is said back, one word a chunk. `GET /stats` tells what runs and what clients left.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STATS = {"running": 0, "most_running": 0, "left": 0, "bodies": []}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = ""
    _counted = False

    def log_message(self, *_: Any) -> None:
        """Say what a talkative server says: the product must keep it to itself."""

    def do_GET(self) -> None:
        if self.path == "/stats":
            self._json(200, STATS)
        elif self.path == "/v1/models":
            self._json(200, {"data": [{"id": self.model, "meta": {"n_params": 1_000_000}}]})
        else:
            self._json(404, {"error": {"message": "no such page"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        chat = self.path == "/v1/chat/completions"
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        sys.stderr.write(f"prompt: {prompt}\n")
        with LOCK:
            STATS["bodies"].append(body)
            STATS["running"] += 1
            STATS["most_running"] = max(STATS["most_running"], STATS["running"])
            self._counted = True
        try:
            if prompt.endswith("refuse"):
                self._count_out()
                self._json(400, {"error": {"message": "temperature: too hot"}})
            else:
                self._answer(prompt, body.get("max_tokens", 64), chat=chat)
        except (BrokenPipeError, ConnectionResetError):
            self._count_out()
            STATS["left"] += 1
            self.close_connection = True

    def _count_out(self) -> None:
        """Before the last bytes go: whoever has read them may already send the next request."""
        with LOCK:
            STATS["running"] -= self._counted
            self._counted = False

    def _answer(self, prompt: str, max_tokens: int, *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        words = [f"{word} " for word in prompt.split()][:max_tokens]
        for word in words:
            self._say(word, chat=chat)
            time.sleep(0.002)
        if prompt.endswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        while prompt.endswith("hold"):
            self._say("on ", chat=chat)
            time.sleep(0.02)
        self._count_out()
        finish = "length" if len(words) == max_tokens else "stop"
        self._event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": finish}]})
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(words)}
        self._event({"choices": [], "usage": usage})
        self._part(b"data: [DONE]\n\n")
        self._part(b"")

    def _say(self, text: str, *, chat: bool) -> None:
        part = {"delta": {"content": text}} if chat else {"text": text}
        self._event({"choices": [{"index": 0, "finish_reason": None, **part}]})

    def _event(self, event: dict[str, Any]) -> None:
        self._part(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _part(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _json(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="tiny-1m")
    parser.add_argument("--stubborn", action="store_true", help="SIGTERM does not end it")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Handler.model = options.model
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
