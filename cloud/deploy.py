"""`python -m cloud.deploy --ray ADDRESS --config FILE --key-file FILE`: host models on Ray.

Makes each `[[hosted]]` table of the cloud configuration an application of the cluster's
Serve, says `deployed` for each and ends; the applications stay. Exit code 2 and the reason
on stderr when a model fits on no node. For its own cluster a fleet gives the models as
JSON on stdin, and the key's hash.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve

from cloud.deployment import application
from cloud.keys import key_hash
from shoal.hosted import HostedModel, from_json
from shoal.hosted_tables import hosted_models
from shoal.kv_budget import MIB

_UNUSABLE = 2


def main(arguments: Sequence[str]) -> int:
    """Deploy all, or say why not."""
    parser = argparse.ArgumentParser(prog="cloud.deploy", description=__doc__)
    parser.add_argument("--ray", required=True, help="host:port of the cluster's head")
    parser.add_argument("--config", type=Path, help="the cloud configuration; default: JSON, stdin")
    parser.add_argument("--key-file", type=Path, help="keys/hosted.key of the fleet")
    parser.add_argument("--key-sha256", help="its hex hash instead")
    parser.add_argument("--loopback", action="store_true", help="all of it on this machine")
    options = parser.parse_args(arguments)
    if not (options.key_file or options.key_sha256):
        parser.error("--key-file or --key-sha256 is needed")
    try:
        key_sha256 = options.key_sha256 or key_hash(options.key_file.read_text("utf-8"))
        models = _models(options.config)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _UNUSABLE
    # None: the address by which the head is reached.
    own_address = "127.0.0.1" if options.loopback else None
    ray.init(
        address=options.ray,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address=own_address,
    )
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    for model in models:
        defect = misfit(model, nodes)
        if defect:
            sys.stderr.write(f"{defect}\n")
            return _UNUSABLE
    for model in models:
        serve.run(
            application(model, key_sha256, loopback=options.loopback),
            name=f"hosted-{model.name}",
            route_prefix=model.path,
        )
        memory_mib = model.memory_bytes // MIB
        print(json.dumps({"stage": "deployed", "model": model.name, "memory_mib": memory_mib}))
    return 0


def _models(config: Path | None) -> tuple[HostedModel, ...]:
    if config is None:
        return from_json(sys.stdin.read())
    return hosted_models(tomllib.loads(config.read_text("utf-8")).get("hosted", []), config.parent)


def misfit(model: HostedModel, nodes: Sequence[Mapping[str, Any]]) -> str:
    """Why no node could ever hold a replica; empty: one could."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    most_memory = max((each.get("memory", 0.0) for each in alive), default=0.0)
    if model.memory_bytes > most_memory:
        return (
            f"{model.name} needs {model.memory_bytes // MIB} MiB on one node, and the largest has "
            f"{int(most_memory) // MIB} MiB for Ray; lower 'slots' or 'context_tokens', or add a "
            "larger node"
        )
    most_cpus = max((each.get("CPU", 0.0) for each in alive), default=0.0)
    if model.cpus > most_cpus:
        return f"{model.name} asks for {model.cpus} cpus, and no node has more than {most_cpus:g}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
