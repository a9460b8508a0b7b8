"""A service that looks at registries, and `plansmith triggers watch` as a process of its own."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plansmith.triggers.inbox.entry import InboxEntry
from plansmith.triggers.inbox.inbox import open_inbox

from ..prefect.programs import Program, own_environment
from ..waiting import SECONDS, soon


class WatchedService:
    """A folder with the file of a service and an inbox in SQLite.

    Args:
        folder: an empty one.
        registries: of the file, by name.
        rules: in short: a registry, what happens there, and what else is said.
    """

    def __init__(self, folder: Path, registries: dict[str, Any], *rules: dict[str, str]) -> None:
        self.folder = folder
        (folder / "configs").mkdir()
        entries = [{"model": "*", "spec": "specs/ranker.yaml", **rule} for rule in rules]
        triggers = {"registries": registries, "rules": entries}
        service = {"directory": "..", "specs": ["specs"], "pools": {"local": {}}, "triggers": triggers}
        (folder / "configs" / "service.yaml").write_text(json.dumps(service))

    def entries(self) -> list[InboxEntry]:
        """The inbox, oldest first."""
        inbox = open_inbox(f"sqlite:///{self.folder}/plansmith-triggers.db")
        try:
            return sorted(inbox.entries(), key=lambda entry: entry.id)
        finally:
            inbox.close()

    def models(self) -> list[str]:
        """What the inbox holds, oldest first."""
        return [entry.event.model for entry in self.entries()]

    @contextmanager
    def watch(self, **variables: str) -> Iterator[Watching]:
        """The command, for the length of a block."""
        running = Watching(self.folder, variables)
        try:
            running.program.start(lambda: "; Ctrl-C ends it" in running.output, SECONDS)
            yield running
        finally:
            running.program.stop()


class Watching:
    """The command as a process, and what it says."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._log = folder / "watch.log"
        command = [sys.executable, "-m", "plansmith", "triggers", "watch"]
        self.program = Program(command, self._log, own_environment(**variables), folder=folder)

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def wait_for(self, words: str) -> None:
        """Until it has said something."""
        assert soon(lambda: words in self.output, True), self.output

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What it logged of one kind."""
        entries = [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == event]

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        (process,) = [candidate for candidate in self.program.processes() if candidate.pid == self.program.number]
        process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, when it has ended by itself."""
        assert self.program._process is not None
        return self.program._process.wait(SECONDS)
