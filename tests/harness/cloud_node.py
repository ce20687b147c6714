"""A real cloud node and a real device's engine, with certificates of one authority."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.identity.authority import Authority
from shoal.wire import CLOUD_TLS_NAME
from tests.harness.engine_process import EngineProcess, running_engine


@dataclass
class Certificates:
    """Folders that the two sides read."""

    home: Path
    device: Path


def make_certificates(folder: Path) -> Certificates:
    """An authority, a node's certificate and a device's."""
    authority = Authority.load_or_create(folder / "ca")
    made = Certificates(folder / "home", folder / "device")
    for target, common_name, names, stem in (
        (made.home / "cloud", "cloud:cloud-1", (CLOUD_TLS_NAME,), "tls"),
        (made.device, "device:d1", (), "device"),
    ):
        target.mkdir(parents=True)
        key_pem, certificate_pem = authority.issue_service(common_name, names)
        (target / f"{stem}.key").write_text(key_pem)
        (target / f"{stem}.crt").write_text(certificate_pem)
        (target / "ca.crt").write_text(authority.ca_pem)
    return made


@contextlib.contextmanager
def running_node(home: Path, model: Path, *engine_arguments: str) -> Iterator[str]:
    """A cloud node that serves `model` as `target`; yields its address."""
    command = [sys.executable, "-m", "cloud.app", "--home", str(home), "--model", str(model)]
    command += ["--name", "target", "--port", "0"]
    for argument in engine_arguments:
        command.append(f"--engine-arg={argument}")
    with (home / "node.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        line = process.stdout.readline() if process.stdout else b""
        if not line:
            raise RuntimeError(f"the node ended: {(home / 'node.log').read_text()[-500:]}")
        yield json.loads(line)["address"]
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout:
            process.stdout.close()


@contextlib.contextmanager
def drafting_engine(
    certificates: Certificates, model: Path, *flags: str
) -> Iterator[EngineProcess]:
    """A device's engine that can dial verifiers."""
    with running_engine(model, "--identity", str(certificates.device), *flags) as engine:
        yield engine
