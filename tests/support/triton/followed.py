"""`plansmith serve --follow` in a process of its own, and the lines that it prints."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from plansmith.triton.server.live import RunningTriton

DEADLINE_SECONDS = 90


class Followed:
    """A server that follows a repository while the block lasts; Ctrl-C ends it.

    Args:
        root: the repository.
        options: further words of the command line.

    Attributes:
        http_url: host and port, once the block is entered.
        grpc_url: the same for gRPC.
        lines: what it printed so far.
    """

    def __init__(self, root: Path, *options: str) -> None:
        self.lines: list[str] = []
        self._root = root
        self._options = options
        self._read = 0
        self._news = threading.Condition()

    def __enter__(self) -> Self:
        ports = [word for kind in ("http", "grpc", "metrics") for word in (f"--{kind}-port", "0")]
        command = [sys.executable, "-m", "plansmith", "serve", "--follow", "--repository", str(self._root), *ports]
        self.process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()
        self.http_url = re.sub("/.*", "", self.line(r"HTTP +http://(.*)"))
        self.grpc_url = self.line("gRPC +grpc://(.*)")
        self.line("Ctrl-C ends it")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(DEADLINE_SECONDS)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_for_models(self, *models: str) -> Self:
        """Wait until it has said something of each of these models."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._news:
            while not all(any(line.startswith(f"{model}: ") for line in self.lines) for model in models):
                waits = self._reader.is_alive() and self._news.wait(deadline - time.monotonic())
                assert waits, (models, self.lines)
        return self

    @property
    def triton(self) -> RunningTriton:
        """The server, to be asked what it serves."""
        return RunningTriton(f"http://{self.http_url}")

    def line(self, pattern: str) -> str:
        """Wait for a line that holds a pattern, after those that were waited for before: its group, or all of it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._news:
            while True:
                while self._read < len(self.lines):
                    self._read += 1
                    match = re.search(pattern, self.lines[self._read - 1])
                    if match is not None:
                        return match[match.lastindex or 0]
                waits = self._reader.is_alive() and self._news.wait(deadline - time.monotonic())
                assert waits, (pattern, self.lines)

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()
