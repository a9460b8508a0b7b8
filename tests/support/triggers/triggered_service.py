"""`plansmith triggers serve` as a process of its own, deliveries that are posted to it, and what became of them."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from plansmith.triggers.inbox.entry import InboxEntry
from plansmith.triggers.inbox.inbox import open_inbox
from plansmith.triggers.registries.mlflow import HEADERS

from ..deliveries.recorded import ALIAS_SET, SECRET, Sent, signed
from ..prefect.prefect_server import PrefectServer
from ..prefect.programs import Program, free_port, own_environment

_START_SECONDS = 180
_END_SECONDS = 180
_LOOK_SECONDS = 0.05
_WORK_SECONDS = 300
"""For what a killed worker had in work, which is another's after a minute, and then put off once or twice."""

_RECORDED = json.loads(ALIAS_SET.body)


def alias_set(model: str, delivery: str, *, version: str = "1", secret: str = SECRET) -> Sent:
    """What MLflow sends when a version becomes the champion, signed now; as recorded but for model and version."""
    value = {**_RECORDED, "data": {**_RECORDED["data"], "name": model, "version": version}}
    return signed(HEADERS, value, secret=secret, delivery=delivery, timestamp=str(int(time.time())))


class Receiver:
    """A process that takes deliveries, and a folder of its own for what it says."""

    def __init__(
        self, service: TriggeredService, number: int, api: dict[str, str], *arguments: str, port: int = 0
    ) -> None:
        self.port = port or free_port()
        self._log = service.folder / f"receiver-{number}.log"
        command = [sys.executable, "-m", "plansmith", "triggers", "serve", "--service", str(service.path)]
        command += ["--port", str(self.port), "--no-poll", *arguments]
        self.program = Program(command, self._log, own_environment(**api, MLFLOW_SECRET=SECRET))

    def start(self) -> None:
        """Start it, and wait until it says that it takes deliveries; it does from then on."""
        self.program.start(lambda: self.ready_line in self.output.splitlines(), _START_SECONDS)

    @property
    def ready_line(self) -> str:
        return f"takes deliveries at http://127.0.0.1:{self.port}/hooks/mlflow; Ctrl-C ends it"

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What it logged of one kind."""
        entries = [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == event]

    def post(self, sent: Sent) -> int:
        """The status of its answer."""
        url = f"http://127.0.0.1:{self.port}/hooks/mlflow"
        return httpx.post(url, content=sent.body, headers=sent.headers, timeout=60).status_code

    def ended_by(self, number: signal.Signals) -> int:
        """Its exit code after a signal."""
        (process,) = [candidate for candidate in self.program.processes() if candidate.pid == self.program.number]
        process.send_signal(number)
        return int(process.wait(_END_SECONDS))


class TriggeredService:
    """A service with one registry, and a rule and a spec for the champions of each of some models.

    Args:
        server: where its runs are started.
        folder: for its file.
        pool: that builds.
        models: their names in the registry, which are those of their specs, too.
        database: the URL of its inbox; a file in the folder without one.
        tracking_uri: of its MLflow server, which need not be there.
        secrets: where those of its webhooks are; `MLFLOW_SECRET` is in the environment.
        spec: what the specs say besides.
    """

    def __init__(
        self,
        server: PrefectServer,
        folder: Path,
        pool: str,
        *models: str,
        database: str = "",
        tracking_uri: str = "http://127.0.0.1:5000",
        secrets: Sequence[str] = ("env:MLFLOW_SECRET",),
        spec: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.server, self.folder, self._pool = server, folder, pool
        self.path = folder / "service.yaml"
        self._database = database or f"sqlite:///{folder}/inbox.db"
        self._number = 0
        (folder / "specs").mkdir()
        for model in models:
            values = {"name": model, "source": f"hf:org/{model}", **spec}
            (folder / "specs" / f"{model}.yaml").write_text(json.dumps(values))
        registry = {
            "type": "mlflow",
            "tracking_uri": tracking_uri,
            "secrets": list(secrets),
        }
        champion = {"registry": "mlflow", "when": "alias", "value": "champion"}
        rules = [champion | {"model": model, "spec": f"specs/{model}.yaml"} for model in models]
        triggers = {"registries": {"mlflow": registry}, "rules": rules, "database": self._database}
        whole = {"specs": ["specs"], "pools": {pool: {}}, "triggers": triggers}
        self.path.write_text(json.dumps(whole))

    @contextmanager
    def receiver(self, *arguments: str, api: dict[str, str] | None = None, port: int = 0) -> Iterator[Receiver]:
        """A receiver for the length of a block.

        Args:
            arguments: more of its command line.
            api: the environment of a client that reaches Prefect's API by another way, or not at all.
            port: where it listens; at a free one without.
        """
        self._number += 1
        instance = Receiver(self, self._number, self.server.variables() if api is None else api, *arguments, port=port)
        try:
            instance.start()
            yield instance
        finally:
            instance.program.stop()

    def entries(self) -> tuple[InboxEntry, ...]:
        """The inbox, newest first."""
        inbox = open_inbox(self._database, make=False)
        try:
            return inbox.entries()
        finally:
            inbox.close()

    def wait_for(self, *states: str) -> tuple[InboxEntry, ...]:
        """The inbox, once its entries are in these states, newest first."""
        return self._once(lambda actual: actual == states)

    def settled(self, least: int) -> tuple[InboxEntry, ...]:
        """The inbox, once it has so many entries or more and all are done, newest first."""
        return self._once(lambda actual: len(actual) >= least and set(actual) == {"done"})

    def _once(self, is_so: Callable[[tuple[str, ...]], bool]) -> tuple[InboxEntry, ...]:
        deadline = time.monotonic() + _WORK_SECONDS
        items = self.entries()
        while not is_so(tuple(item.state for item in items)):
            assert time.monotonic() < deadline, [(item.state, item.reason) for item in items]
            time.sleep(_LOOK_SECONDS)
            items = self.entries()
        return items

    def runs_of(self, model: str, version: str = "1") -> list[dict[str, Any]]:
        """The flow runs of a version in the registry, as the server has them; without those of other services."""
        own = {"name": {"any_": [self._pool]}}
        runs = self.server.ask(
            "flow_runs/filter", flow_runs={"name": {"any_": [f"{model} for local-cpu"]}}, work_pools=own
        )
        source = f"mlflow:models:/{model}/{version}"
        return [run for run in runs if run["parameters"]["spec"]["source"] == source]
