"""Takes deliveries into an inbox and prints the id of each when it is acknowledged: URL, prefix, number of threads."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from threading import Lock, Thread

from plansmith.triggers.inbox.inbox import Inbox, open_inbox
from plansmith.triggers.registries.delivery import Event

_OUTPUT = Lock()

_LONGEST_SECONDS = 120


def _take(inbox: Inbox, prefix: str) -> None:
    for number in count():
        delivery = f"{prefix}-{number}"
        models = [f"{prefix}-{number % 7}", "shared"]
        events = [Event(registry="mlflow", model=model, version=str(number), change="created") for model in models]
        assert inbox.take("mlflow", delivery, events)
        with _OUTPUT:
            os.write(1, f"{delivery}\n".encode())


def main(url: str, prefix: str, threads: str) -> None:
    """Go on until killed."""
    signal.alarm(_LONGEST_SECONDS)  # whatever becomes of the test that started it
    inbox = open_inbox(url)
    workers = [Thread(target=_take, args=(inbox, f"{prefix}{number}")) for number in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
