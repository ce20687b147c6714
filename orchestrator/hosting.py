"""Models on this fleet's own Ray cluster: their key, and the process that deploys them.

`cloud` is a part of its own, so it is started as a process, not imported.
"""

from __future__ import annotations

import hashlib
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.dispatch.endpoint import CloudConfig
from orchestrator.dispatch.hosted import hosted_endpoints, vllm_endpoints
from orchestrator.identity.key_files import create_private, read_private
from shoal.home import Home
from shoal.hosted import HostedModel, to_json
from shoal.hosted_tables import hosted_models

_KEY_BYTES = 32
_DEPLOY_LIMIT_S = 120.0


class HostingError(Exception):
    """A model cannot be hosted; the message says why."""


def with_hosted(cloud: CloudConfig, files: Sequence[str], home: Home, base_url: str) -> CloudConfig:
    """The configuration with `files` as further hosted models, and with their endpoints.

    Raises ValueError for a file that is no model, and for a name that is taken.
    """
    more = hosted_models([{"file": file} for file in files], home.path)
    models = (*cloud.hosted, *more)
    if not models and not cloud.vllm:
        return cloud
    key = _key(home)
    ours = (*hosted_endpoints(models, base_url, key), *vllm_endpoints(cloud.vllm, key))
    endpoints = (*cloud.endpoints, *ours)
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) < len(names):
        raise ValueError(
            "two hosted models, or one and an endpoint, have the same name; give one a 'name'."
        )
    return replace(cloud, hosted=models, endpoints=endpoints)


class Deploying:
    """Deploys while the gateway starts, from now on; `wait` for the end."""

    def __init__(self, models: Sequence[HostedModel], home: Home, ray_address: str) -> None:
        digest = hashlib.sha256(_key(home).encode()).hexdigest()
        command = [sys.executable, "-m", "cloud.deploy", "--ray", ray_address, "--loopback"]
        self._child = subprocess.Popen(
            [*command, "--key-sha256", digest],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._child.stdin is not None:
            # A pipe holds this much, so the gateway need not wait until it is read.
            self._child.stdin.write(to_json(models))
            self._child.stdin.close()
            self._child.stdin = None

    def wait(self) -> None:
        """Return when all are deployed; raises HostingError."""
        try:
            _, errors = self._child.communicate(timeout=_DEPLOY_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()
            raise HostingError(
                f"the hosted models were not deployed within {_DEPLOY_LIMIT_S:.0f} s"
            ) from None
        if self._child.returncode:
            last = (errors.strip().splitlines() or [f"exit code {self._child.returncode}"])[-1]
            raise HostingError(f"the hosted models cannot be deployed: {last}")


def _key(home: Home) -> str:
    """Of the fleet's gateway towards its hosted models; made once."""
    path = home.path / "keys" / "hosted.key"
    create_private(path, secrets.token_urlsafe(_KEY_BYTES).encode())
    return read_private(path).decode()
