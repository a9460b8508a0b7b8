"""What a person sees while a step works."""

from __future__ import annotations

import time
from io import StringIO

import pytest
from rich.console import Console

from plansmith.cli.compile import progress
from plansmith.cli.compile.progress import MovingLine


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1, "export: tracing"), (12, "export: tracing  12 s"), (125, "export: tracing  2 min 05 s")],
)
def test_long_activity_shows_its_time(seconds: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activity that takes long is shown with the time that it has taken."""
    now = [100.0]
    monkeypatch.setattr(progress, "can_redraw", lambda: True)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console(file=StringIO(), width=60, color_system=None)
    monkeypatch.setattr(progress, "open_console", lambda **_: console)
    line = MovingLine()
    line.tell("export: tracing")
    now[0] += seconds
    console.width = 60
    console.print(line)
    assert console.file.getvalue().split(maxsplit=1)[1].strip() == shown  # type: ignore[attr-defined]
