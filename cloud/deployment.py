"""A hosted model as a Ray Serve application: the only module here, with `deploy`, that knows Ray.

A replica is the engine's process and the API in front of it. Serve starts replicas while
more requests run or wait than they have slots, and ends the last one when none came for
a while; a request that finds none waits until one has loaded the model.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from ray import serve
from ray.serve import Application
from ray.serve._private import replica
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig
from starlette.applications import Starlette

from cloud.engine import ColdStartError, HostedEngine
from cloud.text import HostedText, LoadState, hosted_application
from shoal.hosted import HostedModel
from shoal.logs import set_up_logs

log = structlog.get_logger()

# The engine's own queue (`--max-waiting`), which refuses with 429 in OpenAI's shape.
_ENGINE_QUEUE = 64
# Load is averaged over so long: a burst of short requests starts no replica.
_LOOK_BACK_S = 10.0
_UPSCALE_DELAY_S = 5.0
# Of Ray's own process of a replica, beside the engine.
_EXIT_LOST = 1
_LAST_ANSWER_S = 1.0


def autoscaling(model: HostedModel) -> AutoscalingConfig:
    """As many replicas as hold what runs and waits, one slot a request."""
    return AutoscalingConfig(
        min_replicas=model.min_replicas,
        initial_replicas=model.min_replicas,
        max_replicas=model.max_replicas,
        target_ongoing_requests=model.slots,
        upscale_delay_s=_UPSCALE_DELAY_S,
        downscale_delay_s=model.idle_s,
        look_back_period_s=min(_LOOK_BACK_S, max(1.0, model.idle_s)),
    )


def application(model: HostedModel, key_sha256: str, *, loopback: bool) -> Application:
    """Serve's application of the model.

    `loopback`: bind a replica's port for calls between deployments to loopback; Serve
    binds it to every interface, has no setting for it, and unpickles what arrives there.
    """

    def build() -> Starlette:
        if loopback:
            keep_replica_port_on_loopback()
        set_up_logs("hosted")
        return _replica(model, key_sha256)

    @serve.deployment(
        name="Hosted",
        autoscaling_config=autoscaling(model),
        max_ongoing_requests=model.slots + _ENGINE_QUEUE,
        ray_actor_options={"num_cpus": model.cpus, "memory": model.memory_bytes},
        graceful_shutdown_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.1,
        logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
    )
    @serve.ingress(build)
    class Hosted:
        """The ingress; the application does the work."""

    bound: Application = Hosted.bind()  # type: ignore[attr-defined]
    return bound


def _replica(model: HostedModel, key_sha256: str) -> Starlette:
    """A replica whose model does not load serves, too: who waits is told why, at once.

    Serve would start another in its place again and again, and nobody would hear of it.
    """
    folder = tempfile.TemporaryDirectory(prefix="shoal-hosted-")
    engine = HostedEngine(model, Path(folder.name))
    load = LoadState(retire=_retire_soon)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        with folder:
            try:
                await engine.start()
            except ColdStartError as error:
                log.error("model_not_loaded", model=model.name, reason=str(error))
                load.failed(str(error))
                await engine.stop()
                yield
                return
            watch = asyncio.create_task(_exit_with(engine))
            yield
            watch.cancel()
            await engine.stop()

    return hosted_application(HostedText(engine, model, key_sha256, load), lifespan)


def _retire_soon() -> None:
    """End the process when the answer that goes out just now is sent."""
    asyncio.get_running_loop().call_later(_LAST_ANSWER_S, os._exit, _EXIT_LOST)


async def _exit_with(engine: HostedEngine) -> None:
    """A replica without its engine is none: Serve starts another in its place."""
    code = await engine.ended()
    log.error("engine_ended", exit_code=code)
    os._exit(_EXIT_LOST)


def keep_replica_port_on_loopback() -> None:
    """As the gateway's replicas do; nothing here is called by another deployment."""
    bind: Callable[[object, str], int] = replica.add_port_to_grpc_server  # type: ignore[attr-defined]

    def bind_loopback(server: object, address: str) -> int:
        return bind(server, address.replace("[::]", "127.0.0.1"))

    replica.add_port_to_grpc_server = bind_loopback  # type: ignore[attr-defined]
