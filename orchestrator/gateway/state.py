"""The state store as the gateway needs it: its outage is a 503, not a crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from orchestrator.fleet.registry_redis import StateError
from shoal.errors import Reason, ShoalError

_log = structlog.get_logger(__name__)


@contextmanager
def state_calls() -> Iterator[None]:
    """Turn the store's failures within the block into NO_DEVICE (503, worth a retry)."""
    try:
        yield
    except StateError as error:
        _log.warning("state_unreachable", cause=repr(error))
        raise ShoalError(
            Reason.NO_DEVICE, "The fleet's state store is unreachable. Try again soon."
        ) from error
