"""Structured logs on stderr: JSON lines, or coloured text on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog

from shoal.home import log_level_from_environment

_LEVELS = logging.getLevelNamesMapping()


def set_up_logs(process: str, level: str = "") -> None:
    """Configure structlog for this process; `process` is bound to every line.

    `level` empty: what `SHOAL_LOG_LEVEL` says, else info. No prompt text and no
    secret may be logged at any level.
    """
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            _LEVELS.get((level or log_level_from_environment()).upper(), logging.INFO)
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
