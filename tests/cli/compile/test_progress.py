"""The moving line of a terminal, with a bar where it is known how far something is."""

from __future__ import annotations

from io import BytesIO, TextIOWrapper
from uuid import UUID

import pytest
from rich.console import Console
from rich.text import Text

from plansmith.cli.compile.progress import MovingLine


@pytest.mark.parametrize(("encoding", "full", "left"), [("utf-8", "━", "─"), ("ascii", "#", "-")])
def test_bar_shows_progress(encoding: str, full: str, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar is as long as what is done."""
    monkeypatch.setattr("plansmith.cli.compile.progress.can_redraw", lambda: True)
    stream = TextIOWrapper(BytesIO(), encoding=encoding)
    with MovingLine(Console(file=stream, force_terminal=True)) as line:
        for share, cells in ((0.0, 0), (0.25, 5), (1.0, 20)):
            line.tell("publish: sending", share)
            assert _drawn(line) == f"{full * cells}{left * (20 - cells)} publish: sending"
        line.tell("publish")
        assert _drawn(line) == "publish"


def _drawn(line: MovingLine) -> str:
    assert line.shown
    assert isinstance(line._spinner.text, Text)
    return line._spinner.text.plain


def test_same_name_runs_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs of one name, each is told and forgotten by itself."""
    from plansmith.cli.runs.progress import RunProgress
    from plansmith.flows.runs.submitting import RunEnded, SubmittedRun

    monkeypatch.setattr("plansmith.cli.compile.progress.can_redraw", lambda: True)
    runs = [SubmittedRun(UUID(int=number), "a for local-cpu", "") for number in range(2)]
    with RunProgress(runs, quiet=False) as progress:
        progress.step(runs[0], ["export"])
        progress.step(runs[1], ["fetch"])
        assert _drawn(progress._line) == "a for local-cpu: export, a for local-cpu: fetch"
        progress.ended(RunEnded(runs[0], "COMPLETED", ""))
        assert _drawn(progress._line) == "a for local-cpu: fetch"
