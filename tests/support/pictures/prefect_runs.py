"""Prefect's page of runs, after a fleet of which one model fails."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

from ..browser import Browser
from ..prefect.fleets import FleetRun, lay_out
from ..prefect.prefect_server import LOGIN, running
from ..waiting import wait_until
from .screenshot import WIDTH, capture

_HEIGHT = 1200
_DRAW_SECONDS = 3
"""The plot above the runs is drawn after their list."""
_MODELS = ("ranker", "images", "tagger")


def prefect_runs(folder: Path, browser: Browser) -> Iterator[tuple[str, bytes]]:
    """Run a fleet on a real Prefect server, and show its flow runs."""
    lay_out(folder, *_MODELS)
    lay_out(folder, "segmenter", shapes={"pixels": "1x8:2x8:4x8"})
    database = f"sqlite+aiosqlite:///{folder}/prefect.db"
    with running(folder, database, PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT="false") as server:
        started = datetime.now(UTC)
        ended = FleetRun(server, folder).answer().ended
        assert ended == {"segmenter": "failed", **dict.fromkeys(_MODELS, "published")}, ended
        address = f"http://127.0.0.1:{server.port}"
        browser.open(address, width=WIDTH, height=_HEIGHT)
        login = json.dumps(base64.b64encode(LOGIN.encode()).decode())
        browser.evaluate(f"localStorage.setItem('prefect-password', {login})")
        period = {"start": started.isoformat(), "end": datetime.now(UTC).isoformat()}
        browser.open(f"{address}/v2/runs?{urlencode(period)}", width=WIDTH, height=_HEIGHT)
        wait_until(lambda: "segmenter for local-cpu" in str(browser.evaluate("document.body.innerText")))
        time.sleep(_DRAW_SECONDS)
        yield "prefect.png", capture(browser, width=WIDTH, height=_HEIGHT)
