"""A gateway's public pages for bare devices, on loopback: what an honest or a lying one serves."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from shoal.onboarding.depot import Depot, make_depot
from shoal.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION

_CA_DER = b"the script compares hashes; that it is a certificate is the agent's matter"
TOKEN = f"shoal-join.id.secret.{hashlib.sha256(_CA_DER).hexdigest()}"


class DepotSite:
    """Serves `pages`, a dict of path to bytes that tests change at will."""

    def __init__(self, folder: Path) -> None:
        self.pages: dict[str, bytes] = {}
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = pages.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("content-length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}"
        self.depot: Depot = make_depot(folder, self.url)
        self.pages["/shoal/v1/install.sh"] = self.depot.script
        self.pages["/shoal/v1/agent/SHA256SUMS"] = self.depot.sums
        for file in self.depot.files:
            self.pages[f"/shoal/v1/agent/{file.name}"] = file.path.read_bytes()
        self.set_join()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @staticmethod
    def ca_pem(ca_der: bytes = _CA_DER) -> str:
        """What the join page shows as the fleet's authority."""
        body = base64.b64encode(ca_der).decode()
        return f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"

    def set_join(self, ca_der: bytes = _CA_DER, hub: str = "") -> None:
        """The join page; `hub` is an address that devices are told to dial."""
        self.pages["/shoal/v1/join"] = json.dumps(
            {
                "ca_pem": self.ca_pem(ca_der),
                "enrol_address": self.address,
                "hub_addresses": [hub or self.address],
                "protocol": {"min": MIN_PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
            }
        ).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
