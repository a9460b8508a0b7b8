"""What the service says of its work: lines of JSON on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from plansmith.errors import first_line

_OURS = ("plansmith.deliveries", "plansmith.builds", "plansmith.pages", "plansmith.watch")
_SERVERS = ("uvicorn.error", "asyncio")
"""The server's own logs; what they say of requests that are none would be a line for each of an attacker's."""


class _Line(logging.Formatter):
    """A message of ours is a line already; one of the server's becomes one."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name in _OURS:
            return record.getMessage()
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {"event": "server", "time": time, "reason": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            said["reason"] = f"{type(error).__name__}: {first_line(error)}"
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


def log_as_json(stream: TextIO | None = None) -> None:
    """Have the loggers of the service write lines of JSON, and nothing else handle what they say.

    Args:
        stream: standard error where left out.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Line())
    for name, level in (*((name, logging.INFO) for name in _OURS), *((name, logging.ERROR) for name in _SERVERS)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
