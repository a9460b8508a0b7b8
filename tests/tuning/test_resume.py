"""A search on the real Triton that is interrupted, resumed, constrained, and applied."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from plansmith.tuning.trials.history import Trial, read_records

from ..support.cli.command import CommandLine, check_refusal
from .conftest import SEARCH, write_net

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.xdist_group("loadtest"),
    pytest.mark.usefixtures("installation", "site"),
]

Tuned = tuple[CommandLine, dict[str, Any]]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A release of `net`, and the result of a search of it that was interrupted after a few trials."""
    folder = tmp_path_factory.mktemp("tuned")
    command = CommandLine(folder)
    command.document("compile", write_net(folder), "--quiet")
    history = folder / "artifacts" / "tuning" / "net" / "trials.jsonl"
    with command.start("tune", "net", *SEARCH) as search:
        deadline = time.monotonic() + 120
        while search.poll() is None and len(list(read_records(history, Trial))) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        search.send_signal(signal.SIGINT)
        _, errors = search.communicate(timeout=120)
    assert search.returncode == 130, errors
    assert "run the same command again to go on after what is finished" in errors
    finished = len(list(read_records(history, Trial)))
    with command.start("tune", "net", *SEARCH, "--json") as search:
        output, errors = search.communicate(timeout=500)
    assert search.returncode == 0, errors
    document = json.loads(output)
    assert document["search"]["measured"] + finished >= len(document["search"]["trials"])
    assert len({trial.key for trial in read_records(history, Trial)}) == len(list(read_records(history, Trial)))
    return command, document


def test_resumed_search_beats_current_configuration(tuned: Tuned) -> None:
    """The best is better than the current configuration by an interval above 1, and nothing is published."""
    command, document = tuned
    assert document["better"], document["verdict"]
    assert document["search"]["confirmations"][-1]["gain"]["low"] > 1
    assert document["applied"] == ""
    assert json.loads((command.folder / "artifacts/tuning/net/result.json").read_text())["changes"]


def test_unmet_constraint_names_the_nearest(tuned: Tuned) -> None:
    """Where nothing meets a constraint, the nearest configuration and what it reached are named."""
    command, _ = tuned
    answer = command("tune", "net", *SEARCH, "--constraint", "p50<1us", "--json")
    check_refusal(answer, 5, ("the nearest, onnxruntime fp32", "where p50<1us is required"))
    page = (command.folder / "artifacts/tuning/net/result.html").read_text()
    assert "No configuration meets the constraints." in page


def test_apply_publishes_a_release(tuned: Tuned) -> None:
    """--apply measures nothing again, and compiles the best configuration through all gates."""
    command, _ = tuned
    document = command.document("tune", "net", *SEARCH, "--apply")
    assert document["search"]["measured"] == 0
    assert document["applied"] == "net@2"
    release = command.folder / "artifacts" / "repository.plansmith" / "releases" / "net" / "2"
    assert "Published as net@2." in Path(document["page"]).read_text()
    assert "300000" not in (release / "config.pbtxt").read_text()
    assert json.loads((release / "manifest.json").read_text())["served"]["checks"]
