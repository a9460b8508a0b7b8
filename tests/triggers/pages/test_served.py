"""The page of the real program: there while deliveries are taken, gone at once, and left out with --no-page."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from ...support.waiting import soon
from .served import serving
from .site import Site

pytestmark = pytest.mark.slow

_PATIENCE_SECONDS = 120
"""For what comes at once on a machine that has nothing else to do, and never where something is held up."""


def _children(number: int) -> list[int]:
    """The processes that a process has started, from any of its threads."""
    tasks = Path(f"/proc/{number}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.fixture
def folder(site: Site) -> Path:
    """The folder of a service with a model."""
    site.model("ranker")
    (site.place.folder / "inbox.db").unlink()
    return site.place.folder


def test_page_available_during_deliveries(folder: Path) -> None:
    """The page is there while deliveries are taken."""
    with serving(folder) as (process, address):
        page = httpx.get(address, timeout=_PATIENCE_SECONDS)
        assert page.status_code == 200
        assert "/models/ranker" in page.text
        assert "nothing changed" in page.text
        assert httpx.post(f"{address}/hooks/ours", content=b"{}", timeout=_PATIENCE_SECONDS).status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_SECONDS) == 143


def test_service_without_page_has_none(folder: Path) -> None:
    """A service without a page has none."""
    with serving(folder, "--no-page") as (_, address):
        for path in ("/", "/inbox", "/models/ranker", "/style.css"):
            answer = httpx.get(address + path, timeout=_PATIENCE_SECONDS)
            assert (answer.status_code, answer.text) == (404, "Not Found")
        assert httpx.get(f"{address}/healthz", timeout=_PATIENCE_SECONDS).status_code == 200


def test_hanging_query_delays_nothing(folder: Path) -> None:
    """A query that hangs delays neither the page nor the end, and ends with it."""
    os.mkfifo(folder / "silent.yaml")  # to read it waits until somebody writes
    (folder / "specs" / "waiting.yaml").write_text("source: hf:org/waiting\ntarget: ../silent.yaml\n")
    with serving(folder) as (process, address):
        page = httpx.get(address, timeout=_PATIENCE_SECONDS)
        assert "being checked for the first time" in page.text
        assert httpx.get(f"{address}/models/ranker", timeout=_PATIENCE_SECONDS).status_code == 503
        assert httpx.get(f"{address}/inbox", timeout=_PATIENCE_SECONDS).status_code == 200
        queries = _children(process.pid)
        assert len(queries) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_SECONDS) == 143
        assert not soon(lambda: any(Path(f"/proc/{child}").exists() for child in queries), expected=False)
