"""Where no Prefect API is configured, the service itself compiles what registries tell."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plansmith.triggers.inbox.entry import InboxEntry, shown_state
from plansmith.triggers.inbox.inbox import open_inbox
from plansmith.triggers.registries.webhook import HEADERS

from ...support.deliveries.recorded import signed
from ...support.prefect.fleets import write_graph
from ...support.prefect.programs import Program, free_port, own_environment
from ...support.waiting import SECONDS, wait_until

pytestmark = pytest.mark.slow

SECRET = "hook-secret"


class LocalService:
    """`plansmith triggers serve` without Prefect, with a hook and a folder of models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / "log"
        self._inbox = f"sqlite:///{folder}/plansmith-triggers.db"
        (folder / "shelf").mkdir()
        (folder / "specs").mkdir()
        write_graph(folder / "tiny.onnx")
        for name, more in (("tiny", {}), ("shelved", {}), ("wrong", {"tolerances": {"absent": {"max_relative": 1.0}}})):
            spec = {"name": name, "source": f"onnx:{folder}/tiny.onnx", "check_served": False, **more}
            (folder / "specs" / f"{name}.yaml").write_text(json.dumps(spec))
        registries = {
            "ci": {"type": "hook", "secrets": ["env:CI_SECRET"]},
            "shelf": {"type": "folder", "path": "shelf", "poll_seconds": 5},
        }
        trigger = {"registry": "ci", "when": "asked"}
        rules = [trigger | {"model": name, "spec": f"specs/{name}.yaml"} for name in ("tiny", "wrong")]
        rules.append({"registry": "shelf", "model": "*", "when": "ready", "spec": "specs/shelved.yaml"})
        triggers = {"registries": registries, "rules": rules}
        service = {"specs": ["specs"], "pools": {"local": {}}, "triggers": triggers}
        (folder / "service.yaml").write_text(json.dumps(service))
        command = [sys.executable, "-m", "plansmith", "triggers", "serve", "--port", str(self.port)]
        variables = own_environment(CI_SECRET=SECRET, PREFECT_HOME=str(folder / "prefect"))
        variables.pop("PREFECT_API_URL", None)
        self.program = Program([*command, "--service", str(folder / "service.yaml")], self.log, variables)

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def start(self) -> None:
        self.program.start(lambda: "takes deliveries at " in self.output, SECONDS)

    def post(self, model: str, version: str, delivery: str) -> int:
        value = {"model": model, "version": version}
        sent = signed(HEADERS, value, secret=SECRET, delivery=delivery, timestamp=str(int(time.time())))
        url = f"http://127.0.0.1:{self.port}/hooks/ci"
        return httpx.post(url, content=sent.body, headers=sent.headers, timeout=60).status_code

    def entries(self) -> dict[str, InboxEntry]:
        """The inbox by model, the newest of each."""
        inbox = open_inbox(self._inbox, make=False)
        try:
            return {entry.event.model: entry for entry in reversed(inbox.entries())}
        finally:
            inbox.close()

    def wait_for(self, model: str, state: str) -> InboxEntry:
        """The newest entry of a model, once it is in a state."""
        wait_until(lambda: model in self.entries() and self.entries()[model].state == state, lambda: self.output)
        return self.entries()[model]

    def releases(self, model: str) -> list[str]:
        """The numbers of its published versions."""
        shown = self.folder / "artifacts" / "repository" / model
        return sorted(path.name for path in shown.iterdir() if path.name.isdecimal()) if shown.exists() else []

    def steps(self, model: str) -> list[dict[str, Any]]:
        """What the log says of a model's compiles."""
        entries = [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]
        return [line for line in entries if line.get("model") == model and line["event"] == "compile"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LocalService]:
    local_service = LocalService(tmp_path)
    try:
        local_service.start()
        yield local_service
    finally:
        local_service.program.stop()


def test_service_compiles_events_itself(service: LocalService) -> None:
    """A hook and a folder each give one release, a repetition none, and what fails is set aside with its reason."""
    assert service.output.count("no Prefect API is configured: models are compiled in this process") == 1
    assert [service.post("tiny", "1", "d-1") for _ in range(2)] == [202, 202]
    entry = service.wait_for("tiny", "done")
    assert service.releases("tiny") == ["1"]
    assert [line["outcome"] for line in service.steps("tiny")] == ["started", "published"]
    (run,) = entry.runs
    assert (run.model, run.target) == ("tiny", "local-cpu")
    assert run.published_in.endswith("artifacts/repository version 1")
    assert shown_state(entry) == "published"

    assert service.post("wrong", "1", "d-2") == 202
    assert "absent" in service.wait_for("wrong", "set-aside").reason
    assert [line["outcome"] for line in service.steps("wrong")] == ["started", "failed"]

    model = service.folder / "shelf" / "ranker"
    model.mkdir()
    write_graph(model / "model.onnx")
    (model / "_READY").touch()
    entry = service.wait_for("ranker", "done")
    assert service.releases("shelved") == ["1"]
    assert entry.event.source == f"onnx:{model}/model.onnx"


def test_killed_service_builds_once(service: LocalService) -> None:
    """A service that is killed in a compile builds it once when it is back."""
    assert service.post("tiny", "1", "d-1") == 202
    wait_until(lambda: bool(service.steps("tiny")), lambda: service.output)
    service.program.kill_all()
    assert service.entries()["tiny"].state == "in-work"
    service.start()
    service.wait_for("tiny", "done")
    assert service.releases("tiny") == ["1"]
