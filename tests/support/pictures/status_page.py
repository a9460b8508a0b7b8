"""The status page of `plansmith triggers serve`, after it has built what its registry reported."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from plansmith.triggers.registries.webhook import HEADERS

from ..browser import Browser
from ..deliveries.recorded import signed
from ..models.encoders import save_bert, save_timm
from ..prefect.programs import Program, free_port, own_environment
from ..triggers.inboxes import opened
from ..waiting import wait_until
from .screenshot import screenshot

_SECRET = "of this service alone"
_WIDTH = 1280
_START_SECONDS = 120
_AGE_SECONDS = 5
"""How old the check of the fleet is that the page shows."""
_MODELS = {"ranker": "hf", "tagger": "hf", "images": "timm", "segmenter": "timm"}


class _Service:
    """The service as a process, and the deliveries that it gets.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._sent = folder, 0
        self.address = f"http://127.0.0.1:{(port := free_port())}"
        rules = [
            {"registry": "releases", "model": name, "when": "asked", "spec": f"specs/{name}.yaml"} for name in _MODELS
        ]
        registries = {"releases": {"type": "hook", "secrets": ["env:HOOK_SECRET"]}}
        config = {"name": "search", "directory": ".", "specs": ["specs"], "pools": {"local": {}}}
        triggers = {"registries": registries, "rules": rules}
        (folder / "specs").mkdir()
        (folder / "service.yaml").write_text(json.dumps({**config, "triggers": triggers}))
        command = [sys.executable, "-m", "plansmith", "triggers", "serve", "--service", "service.yaml"]
        command += ["--port", str(port)]
        self.program = Program(command, folder / "serve.log", own_environment(HOOK_SECRET=_SECRET), folder=folder)

    @property
    def log(self) -> str:
        """What the service has said."""
        return (self._folder / "serve.log").read_text()

    def spec(self, name: str, scheme: str, **values: Any) -> None:
        """Write a spec of a model in `models`."""
        spec = {
            "source": f"{scheme}:../models/{name}",
            "name": name,
            "artifacts": "../artifacts",
            "check_served": False,
        }
        (self._folder / "specs" / f"{name}.yaml").write_text(yaml.safe_dump({**spec, **values}, sort_keys=False))

    def deliver(self, model: str, version: str) -> None:
        """Post that a version of a model is to be built."""
        self._sent += 1
        sent = signed(
            HEADERS,
            {"model": model, "version": version},
            secret=_SECRET,
            delivery=f"d{self._sent}",
            timestamp=str(int(time.time())),
        )
        httpx.post(f"{self.address}/hooks/releases", content=sent.body, headers=sent.headers).raise_for_status()

    def build(self, model: str, version: str) -> None:
        """Deliver an event, and wait until nothing waits any more."""
        self.deliver(model, version)
        wait_until(lambda: self.states() <= {"done", "set-aside"}, lambda: self.log)

    def states(self) -> set[str]:
        """The states of the entries in the inbox."""
        with opened(f"sqlite:///{self._folder}/plansmith-triggers.db") as inbox:
            return {entry.state for entry in inbox.entries()}


def status_page(folder: Path, browser: Browser) -> Iterator[tuple[str, bytes]]:
    """Build a fleet with a model that the gate refused, one whose weights have changed, and a spec with a mistake."""
    models = folder / "models"
    save_bert(models / "ranker", "ForSequenceClassification")
    save_bert(models / "tagger", "ForTokenClassification")
    for name in ("images", "segmenter"):
        save_timm(models / name, classes=("cat", "dog"))
    service = _Service(folder)
    for name, scheme in _MODELS.items():
        service.spec(name, scheme)
    try:
        service.program.start(lambda: "takes deliveries at" in service.log, _START_SECONDS)
        service.build("tagger", "4")
        service.build("images", "7")
        service.build("ranker", "12")
        service.spec("ranker", "hf", precision="int8")
        service.build("ranker", "13")
        service.spec("ranker", "hf", precision="int8", tolerances={"logits": {"max_relative": 1e-5}})
        service.build("ranker", "14")
        service.spec("ranker", "hf")
        shutil.rmtree(models / "ranker")
        save_bert(models / "ranker", "ForSequenceClassification")
        service.build("ranker", "15")
        service.spec("segmenter", "timm", precison="fp16")
        service.build("segmenter", "3")
        service.build("summariser", "1")
        shutil.rmtree(models / "images")
        save_timm(models / "images", classes=("cat", "dog"))
        for name, page in (("fleet.png", service.address), ("model.png", f"{service.address}/models/ranker")):
            wait_until(partial(_is_checked, page))
            time.sleep(_AGE_SECONDS)
            yield name, screenshot(browser, page, until="footer", width=_WIDTH, margin=0)
        service.deliver("images", "8")
        service.deliver("tagger", "5")
        wait_until(lambda: "in-work" in service.states())
        yield "inbox.png", screenshot(browser, f"{service.address}/inbox", until="table", width=_WIDTH, margin=0)
    finally:
        service.program.stop()


def _is_checked(page: str) -> bool:
    """Whether a page shows the result of a check."""
    return "Checked" in httpx.get(page).text
