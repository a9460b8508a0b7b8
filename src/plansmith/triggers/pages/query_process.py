"""Runs a query of a page in a process of its own, so that it costs the receiver neither memory nor time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from plansmith.errors import EnvironmentFault

_MODULE = "plansmith.triggers.pages.queries"
_TIMEOUT_SECONDS = 120


def run_query(query: Mapping[str, Any]) -> Any:
    """The result of a query as JSON values (`queries.answer`); takes seconds.

    Raises:
        EnvironmentFault: there is none, and why.
    """
    command = [sys.executable, "-m", _MODULE, str(os.getpid())]
    try:
        done = subprocess.run(
            command, input=json.dumps(query).encode(), capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"it took longer than {_TIMEOUT_SECONDS} s and was given up",
            remedy="see whether its folders answer: plansmith status",
        ) from error
    if done.returncode:
        raise RuntimeError(f"{_MODULE} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    answer = json.loads(done.stdout)
    if (detail := answer.get("error")) is not None:
        raise EnvironmentFault(detail["message"], remedy=detail["remedy"])
    return answer["result"]
