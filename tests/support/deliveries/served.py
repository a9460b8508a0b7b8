"""`plansmith triggers serve --no-worker` as a process of its own, with a registry of each type that sends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from plansmith.triggers.inbox.entry import InboxEntry
from plansmith.triggers.inbox.inbox import open_inbox

from ..prefect.programs import Program, free_port, own_environment
from .hostile import BODY_BYTES, HOOK, HUB, MLFLOW, SECRETS

HEAD_SECONDS, BODY_SECONDS = 3, 2
_START_SECONDS = 120
_VARIABLES = {HOOK: "CI_SECRET", MLFLOW: "MLFLOW_SECRET", HUB: "HUB_SECRET"}
_MOST_ENTRIES = 100_000

_TRIGGERS: dict[str, Any] = {
    "registries": {
        "ours": {"type": "mlflow", "tracking_uri": "http://127.0.0.1:5000", "secrets": [f"env:{_VARIABLES[MLFLOW]}"]},
        "hub": {"type": "hub", "secrets": [f"env:{_VARIABLES[HUB]}"]},
        "ci": {"type": "hook", "secrets": [f"env:{_VARIABLES[HOOK]}"]},
        "here": {"type": "folder", "path": "models"},
    },
    "rules": [{"registry": "ci", "model": "*", "when": "asked", "spec": "specs/ranker.yaml"}],
    "limits": {
        "body_bytes": BODY_BYTES,
        "body_seconds": BODY_SECONDS,
        "head_seconds": HEAD_SECONDS,
        "per_minute": 10**6,
    },
}


class Served:
    """The process.

    Args:
        folder: for its files; it works there.
        limits: others than the usual ones.
        database: the URL of its inbox; a file of SQLite in its folder when left out.
        program: the words that `plansmith` is.
    """

    def __init__(
        self, folder: Path, *, database: str = "", program: Sequence[str] = ("-m", "plansmith"), **limits: Any
    ) -> None:
        self.port = free_port()
        self._database = database or f"sqlite:///{folder}/plansmith-triggers.db"
        self._log = folder / "log"
        (folder / "specs").mkdir(parents=True)
        (folder / "specs" / "ranker.yaml").write_text("name: ranker\nsource: hf:org/ranker\n")
        triggers = {**_TRIGGERS, "limits": _TRIGGERS["limits"] | limits, "database": "env:INBOX"}
        whole = {"specs": ["specs"], "pools": {"local": {}}, "triggers": triggers}
        (folder / "service.yaml").write_text(json.dumps(whole))
        command = [sys.executable, *program, "triggers", "serve", "--no-worker", "--no-poll"]
        command += ["--service", str(folder / "service.yaml"), "--port", str(self.port)]
        secrets = {_VARIABLES[path]: secret for path, secret in SECRETS.items()}
        self.program = Program(command, self._log, own_environment(**secrets, INBOX=self._database))

    @property
    def output(self) -> str:
        """All that it printed."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it logged; each line but those which say where it listens and that it ends must be JSON."""
        prefixes = ("takes deliveries at ", "status page at ", "no deliveries are taken any more")
        return [json.loads(line) for line in self.output.splitlines() if not line.startswith(prefixes)]

    @property
    def resident_mib(self) -> float:
        """Its memory."""
        return float(psutil.Process(self.program.number).memory_info().rss / 2**20)

    @property
    def cpu_seconds(self) -> float:
        """What it has used so far."""
        used = psutil.Process(self.program.number).cpu_times()
        return float(used.user + used.system)

    @property
    def figures(self) -> str:
        """Its metrics."""
        return httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60).text

    def entries(self) -> tuple[InboxEntry, ...]:
        """Its inbox."""
        inbox = open_inbox(self._database, make=False)
        try:
            return inbox.entries(limit=_MOST_ENTRIES)
        finally:
            inbox.close()

    def start(self) -> None:
        """Start it, and wait until it takes deliveries."""
        self.program.start(lambda: "takes deliveries at " in self.output, _START_SECONDS)


@contextmanager
def served(folder: Path, **more: Any) -> Iterator[Served]:
    """A receiver for the length of a block; arguments as for `Served`."""
    receiver = Served(folder, **more)
    try:
        receiver.start()
        yield receiver
    finally:
        receiver.program.stop()
