"""Every place from which bytes can leave a process is known, with its reason.

A new one fails here until it is listed. Listing one that carries prompts, or what was
made from them, to a host outside the fleet is not enough: it must go through
`orchestrator.dispatch.outbound` (docs/privacy.md).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("shoal", "orchestrator", "agent", "cloud", "deploy")

# Calls of these names open a connection, whatever they are called on.
OPENERS = {
    "AsyncClient", "AsyncOpenAI", "Client", "ClientSession", "HTTPConnection", "HTTPSConnection",
    "OpenAI", "Redis", "Session", "StrictRedis", "connect", "connect_ex", "create_connection",
    "create_datagram_endpoint", "create_unix_connection", "from_url", "hf_hub_download",
    "insecure_channel", "open_connection", "open_unix_connection", "push_to_gateway",
    "secure_channel", "sendto", "snapshot_download", "sock_connect", "socket", "socketpair",
    "start_http_server", "urlopen", "urlretrieve",
}  # fmt: skip
# Libraries that can open one; importing any is listed too, for a name can be hidden.
LIBRARIES = {
    "aiohttp", "boto3", "fsspec", "ftplib", "grpc", "http.client", "httpcore", "httpx",
    "huggingface_hub", "imaplib", "openai", "opentelemetry", "paramiko", "poplib",
    "presidio_analyzer", "pycurl", "redis", "requests", "sentry_sdk", "smtplib", "socket",
    "telnetlib", "tldextract", "urllib.request", "urllib3", "websocket", "websockets", "xmlrpc",
}  # fmt: skip
# Modules that load other modules by a name that is not in the source.
DYNAMIC = {"import_module", "__import__"}
PROGRAMS = {"curl", "wget", "nc", "ssh", "scp", "rsync", "git", "pip"}

GATED = "gated: every byte comes out of an OutboundPass"
STATE = "the fleet's own state Redis: no prompt is written there"
FLEET = "the fleet's own hub or device, mutual TLS"
LOCAL = "this machine only: Unix socket or loopback"
GATEWAY = "the fleet's own gateway"
SETUP = "installs or fetches software and models by name; sees no request"
NAMED = "has the name of an opener and opens nothing"

# (file, call) -> reason.
KNOWN_CALLS = {
    ("orchestrator/dispatch/cloud_http.py", "httpx.AsyncClient"): GATED,
    ("agent/kv/redis_client.py", "redis.Redis.from_url"): (
        "the fleet's cache Redis: sealed blocks, none of a local_only request"
    ),
    ("agent/local_api/server.py", "socket.socket"): "listens for this device's own clients",
    ("agent/rpc/engine_client.py", "grpc.aio.insecure_channel"): LOCAL,
    ("agent/rpc/engine_client.py", "stub.Session"): LOCAL,
    ("agent/companion/server.py", "socket.socket"): "only binds: is the port free?",
    ("agent/companion/upstream.py", "httpx.AsyncClient"): (
        f"{LOCAL}, unless the device's owner allowed another; then no local request"
    ),
    ("agent/rpc/gateway_page.py", "httpx.AsyncClient"): f"{GATEWAY}: asks for the page to join",
    ("shoal/model_fetch.py", "httpx.AsyncClient"): SETUP,
    ("agent/rpc/path.py", "asyncio.open_connection"): f"{FLEET}: is the port there; sends nothing",
    ("agent/rpc/tls.py", "grpc.aio.secure_channel"): FLEET,
    ("agent/llama/verifier_link.py", "grpc.aio.secure_channel"): (
        "gated: a verifier's address comes from an OutboundPass only; mutual TLS"
    ),
    ("cloud/app.py", "grpc.aio.insecure_channel"): f"{LOCAL}: the node's own engine",
    ("cloud/engine.py", "grpc.aio.insecure_channel"): f"{LOCAL}: the replica's own engine",
    ("cloud/engine.py", "stub.Session"): f"{LOCAL}: the replica's own engine",
    ("orchestrator/actors/ports.py", "socket.socket"): f"{LOCAL}: the guard of a block of ports",
    ("orchestrator/app.py", "httpx.Client"): f"{GATEWAY}: is it ready",
    ("orchestrator/dispatch/hub_link.py", "grpc.aio.secure_channel"): FLEET,
    ("orchestrator/dispatch/hub_link.py", "inference.Session"): FLEET,
    ("orchestrator/fleet/registry_redis.py", "Redis.from_url"): STATE,
    ("orchestrator/gateway/app.py", "connect"): STATE,
    ("orchestrator/hub/build.py", "connect"): STATE,
    ("orchestrator/setup.py", "connect"): STATE,
    ("orchestrator/hub/device_link.py", "self._devices.connect"): NAMED,
    ("orchestrator/hub/roster.py", "self._registry.connect"): NAMED,
    ("orchestrator/identity/cache_users_redis.py", "redis.asyncio.Redis.from_url"): (
        "the fleet's cache Redis: makes and removes its users"
    ),
    ("shoal/cli/cache_server.py", "socket.create_connection"): f"{LOCAL}: does Redis answer",
    ("shoal/cli/client.py", "httpx.Client"): f"{GATEWAY}: the command line's requests",
    ("shoal/cli/redis_server.py", "connection.connect"): f"{LOCAL}: does Redis answer",
    ("shoal/cli/redis_server.py", "socket.socket"): f"{LOCAL}: does Redis answer",
    ("shoal/onboarding/preflight.py", "socket.create_connection"): (
        f"{GATEWAY} and hub: can this machine reach them before it joins"
    ),
    ("shoal/onboarding/preflight.py", "urllib.request.urlopen"): f"{GATEWAY}: does it answer",
    ("shoal/ports.py", "socket.socket"): f"{LOCAL}: is a port free",
}
# (file, library) -> reason, where no call above says it.
KNOWN_IMPORTS = {
    ("agent/hardware/report.py", "socket"): "the machine's name",
    ("agent/session/config.py", "socket"): "the machine's name",
    ("agent/kv/block_read.py", "redis"): "reads the answer on the cache tier's own connection",
    ("agent/kv/redis_tier.py", "redis"): "the errors of the cache tier's connection",
    ("agent/calibration/trial.py", "grpc"): f"{LOCAL}: the errors of an engine on trial",
    ("agent/llama/serve.py", "grpc"): f"{LOCAL}: serves",
    ("agent/companion/serve.py", "grpc"): f"{LOCAL}: serves",
    ("agent/rpc/engine_host.py", "grpc"): LOCAL,
    ("cloud/relay.py", "grpc"): f"{LOCAL}: the node's own engine; serves",
    ("agent/rpc/enrol.py", "grpc"): f"{FLEET}: by agent/rpc/tls.py",
    ("agent/rpc/hub_files.py", "grpc"): f"{FLEET}: by agent/rpc/tls.py",
    ("agent/rpc/link.py", "grpc"): f"{FLEET}: by agent/rpc/tls.py",
    ("agent/rpc/membership.py", "grpc"): f"{FLEET}: by agent/rpc/tls.py",
    ("orchestrator/dispatch/presidio.py", "presidio_analyzer"): (
        "judges texts in this process; patterns only, no model is fetched"
    ),
    ("orchestrator/dispatch/presidio.py", "tldextract"): "told to fetch nothing",
    ("orchestrator/catalogue/store_redis.py", "redis"): STATE,
    ("orchestrator/fleet/cascade_redis.py", "redis"): f"{STATE}: numbers only",
    ("orchestrator/fleet/decisions_redis.py", "redis"): STATE,
    ("orchestrator/fleet/hubs_redis.py", "redis"): STATE,
    ("orchestrator/fleet/local_served_redis.py", "redis"): STATE,
    ("orchestrator/gateway/app.py", "redis"): STATE,
    ("orchestrator/gateway/devices.py", "grpc"): f"{FLEET}: types of errors",
    ("orchestrator/hub/device_link.py", "grpc"): f"{FLEET}: serves",
    ("orchestrator/hub/enrolment.py", "grpc"): f"{FLEET}: serves",
    ("orchestrator/hub/fleet_service.py", "grpc"): f"{FLEET}: serves",
    ("orchestrator/hub/inference.py", "grpc"): f"{FLEET}: serves",
    ("orchestrator/hub/model_files.py", "grpc"): f"{FLEET}: serves",
    ("orchestrator/hub/roles.py", "grpc"): f"{FLEET}: serves",
    ("orchestrator/hub/service.py", "grpc"): f"{FLEET}: serves",
    ("orchestrator/identity/key_store_redis.py", "redis"): STATE,
    ("orchestrator/identity/tenants_redis.py", "redis"): STATE,
    ("orchestrator/identity/token_store_redis.py", "redis"): STATE,
    ("orchestrator/rollout/store_redis.py", "redis"): STATE,
    ("shoal/cli/agents_local.py", "httpx"): f"{LOCAL}: does the local API answer",
    ("shoal/errors.py", "grpc"): "status codes",
}
# (file, call) -> reason.
KNOWN_DYNAMIC = {
    ("agent/hardware/nvml.py", "importlib.import_module"): "reads the GPU's meters, if installed",
}
# (file, program) -> reason.
KNOWN_PROGRAMS = {
    ("agent/upgrade/installing.py", "pip"): SETUP,
    ("deploy/audit.py", "pip"): SETUP,
    ("deploy/build_engine.py", "pip"): SETUP,
    ("deploy/engine_source.py", "pip"): SETUP,
    ("shoal/onboarding/bundle.py", "pip"): SETUP,
}


@cache
def sources() -> list[tuple[str, ast.AST]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    ]


def calls(tree: ast.AST, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "attr", getattr(called, "id", ""))
            if name in names:
                yield ast.unparse(called)


def libraries(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            # `from urllib import request` names the module in its second half.
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            for library in LIBRARIES:
                if module == library or module.startswith(library + "."):
                    yield library


def strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_opening_of_a_connection_is_known() -> None:
    found = {(file, call) for file, tree in sources() for call in calls(tree, OPENERS)}
    assert found - KNOWN_CALLS.keys() == set(), "unlisted outbound path; see this file's head"
    assert KNOWN_CALLS.keys() - found == set(), "listed, but no longer there"


def test_every_import_of_a_network_library_is_known() -> None:
    by_call = defaultdict(set)
    for file, call in KNOWN_CALLS:
        by_call[file].add(call)
    found = {(file, library) for file, tree in sources() for library in libraries(tree)}
    unlisted = {pair for pair in found - KNOWN_IMPORTS.keys() if pair[0] not in by_call}
    assert unlisted == set(), "unlisted network library; see this file's head"
    assert KNOWN_IMPORTS.keys() - found == set(), "listed, but no longer there"


def test_no_module_is_loaded_by_a_hidden_name() -> None:
    found = {(file, call) for file, tree in sources() for call in calls(tree, DYNAMIC)}
    assert found == KNOWN_DYNAMIC.keys()


def test_every_started_program_that_talks_to_the_network_is_known() -> None:
    found = {(file, text) for file, tree in sources() for text in strings(tree) if text in PROGRAMS}
    assert found == KNOWN_PROGRAMS.keys()


def module(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def test_passes_are_made_in_the_gate_only() -> None:
    makers = {file for file, tree in sources() for _ in calls(tree, {"OutboundPass"})}
    assert makers == {"orchestrator/dispatch/outbound.py"}
    seals = {
        file
        for file, tree in sources()
        for node in ast.walk(tree)
        if getattr(node, "id", getattr(node, "attr", "")) == "_SEAL"
    }
    assert seals == {"orchestrator/dispatch/outbound.py"}


def test_http_client_checks_the_pass_before_all_else() -> None:
    (client,) = (
        node
        for node in module("orchestrator/dispatch/cloud_http.py").body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(n, ast.Attribute) and n.attr == "_http" for n in ast.walk(node))
    )
    methods = {
        node.name: node
        for node in client.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    senders = {
        name
        for name, method in methods.items()
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and node.attr == "_http" and name != "__init__"
    }
    assert senders == {"_stream", "close"}
    callers = {name for name, m in methods.items() if "self._stream" in calls(m, {"_stream"})}
    assert callers == {"stream"}
    first = methods["stream"].body[1]  # after the docstring
    assert ast.unparse(first) == "request = checked(outbound, own=self._own)"
