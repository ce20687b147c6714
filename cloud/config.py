"""Settings of a cloud node."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.home import Home, default_home


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What one node serves, and where; see `cloud.app --help`."""

    # Folder with tls.key, tls.crt (role `cloud:`) and ca.crt.
    tls_dir: Path
    sockets_dir: Path
    model: Path
    name: str
    host: str
    port: int
    engine_arguments: tuple[str, ...]


def read_config(arguments: Sequence[str]) -> NodeConfig:
    """Settings from flags; SystemExit(2) when they are wrong."""
    parser = argparse.ArgumentParser(prog="cloud.app", description="Serve a model as a cloud node.")
    add = parser.add_argument
    add("--home", type=Path, help="state directory with cloud/tls.key, tls.crt and ca.crt")
    add("--model", type=Path, required=True, help="GGUF file")
    add("--name", required=True, help="catalogue name of the model, as in the cloud configuration")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, required=True, help="port to listen on, mutual TLS")
    add("--engine-arg", action="append", default=[], help="passed on to the engine; repeatable")
    given = parser.parse_args(arguments)
    home = Home(given.home.expanduser().absolute()) if given.home else default_home()
    return NodeConfig(
        tls_dir=home.path / "cloud",
        sockets_dir=home.make_sockets_dir(),
        model=given.model,
        name=given.name,
        host=given.host,
        port=given.port,
        engine_arguments=tuple(given.engine_arg),
    )
