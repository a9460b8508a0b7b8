"""Tells a registry and is killed at it: the inbox's URL, the registry's, `written` or `begun`.

Prints a line when it has written to the registry and before it notes that, or before it writes, and waits.
"""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from plansmith.triggers.inbox.inbox import open_inbox

from .mlflow_server import Mlflow
from .write_backs import PUBLISHED, KnownEndings, run_of, teller

_LONGEST_SECONDS = 120
_NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def main(url: str, address: str, where: str) -> None:
    """Tell of what is due, and stop with it."""
    signal.alarm(_LONGEST_SECONDS)  # whatever becomes of the test that started it

    def hold(*_: Any) -> bool:
        print(where, flush=True)
        sys.stdin.read()
        return True

    endings = KnownEndings()
    endings.end(run_of("one"), PUBLISHED)
    inbox = open_inbox(url)
    if where == "begun":
        endings.meanwhile = hold
    with patch.object(inbox.write_backs, "finish", hold):
        teller(inbox, endings, Mlflow(url=address), lambda: _NOW).step()


if __name__ == "__main__":
    main(*sys.argv[1:])
