"""`python -m cloud.deploy --ray ADDRESS --key-sha256 HEX < MODELS`: host models on a Ray cluster.

Reads a JSON list of `shoal.hosted.HostedModel` from stdin, makes each an application of
the cluster's Serve, says `deployed` for each and ends; the applications stay. Exit code 2
and the reason on stderr when a model fits on no node.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import serve

from cloud.deployment import application
from shoal.hosted import HostedModel, from_json
from shoal.kv_budget import MIB

_UNUSABLE = 2


def main(arguments: Sequence[str]) -> int:
    """Deploy all, or say why not."""
    parser = argparse.ArgumentParser(prog="cloud.deploy", description=__doc__)
    parser.add_argument("--ray", required=True, help="host:port of the cluster's head")
    parser.add_argument("--key-sha256", required=True, help="hex hash of the gateway's key")
    parser.add_argument("--loopback", action="store_true", help="all of it on this machine")
    options = parser.parse_args(arguments)
    models = from_json(sys.stdin.read())
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
            application(model, options.key_sha256, loopback=options.loopback),
            name=f"hosted-{model.name}",
            route_prefix=model.path,
        )
        memory_mib = model.memory_bytes // MIB
        print(json.dumps({"stage": "deployed", "model": model.name, "memory_mib": memory_mib}))
    return 0


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
