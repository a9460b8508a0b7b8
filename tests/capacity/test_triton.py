"""`plansmith capacity` on a Triton of this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from plansmith.capacity.server import ExplicitTriton

from ..support.cli.command import check_refusal
from ..support.cli.in_process import InProcess
from .conftest import BLOCK_BYTES, MIB

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("capacity")]


def test_copies_loaded_and_unloaded(command: InProcess) -> None:
    """Copies of the releases are loaded in turn, answer and are unloaded, with the memory of each."""
    report = command.document("capacity", "block", "onnx", "--max-copies", "4")
    assert [copy["release"] for copy in report["copies"]] == ["block@1", "onnx@1", "block@1", "onnx@1"]
    assert len({copy["name"] for copy in report["copies"]}) == 4
    assert (report["ending"], report["still_loaded"], report["failed_answers"]) == ("max-copies", [], {})
    assert report["answers_ms"]["count"] == report["unload_seconds"]["count"] == 4
    blocks = [copy["memory_bytes"]["host"] for copy in report["copies"] if copy["release"] == "block@1"]
    assert all(size > BLOCK_BYTES for size in blocks)
    assert any("stand-in" in note for note in report["notes"])
    full, after = (report[name][0]["server_bytes"] for name in ("memory_full", "memory_after"))
    assert after < full - 2 * BLOCK_BYTES
    assert not list(Path(tempfile.gettempdir()).glob(f"plansmith-{os.getpid()}-capacity-*"))


def test_stated_memory_is_not_passed(command: InProcess) -> None:
    """Loading ends before the copies use more than the share of the stated memory."""
    answer = command("capacity", "block", "--memory", "400M")
    assert answer.status == 0, answer
    first, reason = answer.stdout.splitlines()[:2]
    assert first.endswith("of block@1 fit")
    assert "of 400.0 MiB, as stated, in use" in reason
    number = int(first.split()[0])
    assert number >= 2
    assert answer.stderr.count("copy ") == number
    assert "per copy" in answer.stdout


@pytest.mark.parametrize("model", ["whole", "script"])
def test_ensemble_copied_with_members(command: InProcess, model: str) -> None:
    """An ensemble or script is copied with the models that it asks, and each copy asks its own."""
    report = command.document("capacity", model, "--max-copies", "2")
    assert (len(report["copies"]), report["answers_ms"]["count"], report["unload_seconds"]["count"]) == (2, 2, 2)


def test_failed_load_is_result(command: InProcess) -> None:
    """A copy that does not load ends the loading with its reason, and the others still answer."""
    report = command.document("capacity", "faulty")
    assert (len(report["copies"]), report["ending"], report["answers_ms"]["count"]) == (2, "load-failed", 2)
    assert "no weights" in report["reason"]


def test_dead_server_is_result(command: InProcess) -> None:
    """A load that ends the server is reported with what was measured before."""
    report = command.document("capacity", "deadly")
    assert (len(report["copies"]), report["ending"]) == (2, "server-lost")
    assert "Triton was killed while it was asked" in report["reason"]


def test_hanging_copy_is_result(command: InProcess) -> None:
    """A copy that never answers ends the measurement after the timeout, with what was measured before."""
    report = command.document("capacity", "hanging", "--timeout", "5")
    assert (len(report["copies"]), report["ending"]) == (1, "server-lost")


def test_a_wrong_answer_fails(command: InProcess) -> None:
    """A copy that answers wrongly is an error, with the report."""
    answer = command("capacity", "wrong", "--json")
    assert answer.status == 8
    assert (len(answer.document["copies"]), answer.document["ending"]) == (1, "answer-failed")
    assert answer.message.startswith("plansmith: copy 2 fails to answer: ")


def test_an_interrupted_measurement_reports(command: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends with exit code 130 and what was measured, and with the server."""
    invoke = ExplicitTriton.invoke

    def interrupted(server: ExplicitTriton, number: int) -> float:
        if number == 2:
            raise KeyboardInterrupt
        return invoke(server, number)

    monkeypatch.setattr(ExplicitTriton, "invoke", interrupted)
    answer = command("capacity", "block", "--json")
    assert answer.status == 130
    assert (len(answer.document["copies"]), answer.document["ending"]) == (1, "interrupted")


def test_full_disk_is_result(command: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading ends where the files of a copy do not fit on the disk."""
    monkeypatch.setattr("plansmith.capacity.server.RESERVED_DISK_BYTES", shutil.disk_usage("/").total * 1000)
    report = command.document("capacity", "block")
    assert (report["ending"], report["copies"]) == ("disk", [])


def test_a_dry_run_loads_nothing(command: InProcess) -> None:
    """A dry run shows files and memory of copies, and starts no server."""
    answer = command("capacity", "block", "--dry-run", "--memory", "1G")
    assert answer.status == 0, answer
    assert "921.6 MiB of host memory are free within 90% of 1.0 GiB" in answer.stdout
    document = command.document("capacity", "block", "--dry-run", "--memory", "1G")
    assert document["copies"]["block@1"] > 0
    assert document["memory"]["total_bytes"] == 1024 * MIB


def test_unmeasurable_input_refused(command: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong options, and a machine that does not tell memory, are refused with what to do."""
    check_refusal(command("capacity", "block", "--share", "1.5", "--json"), 2, ("--share 0.9",))
    check_refusal(command("capacity", "block", "block@1", "--json"), 2, ("one release of each model",))
    check_refusal(command("capacity", "block", "--memory", "900000G", "--json"), 2, ("that are free here",))
    monkeypatch.setattr("plansmith.capacity.results.is_measurable", lambda: False)
    check_refusal(command("capacity", "block", "--json"), 9, ("smaps_rollup",))
