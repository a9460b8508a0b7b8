"""`plansmith doctor`."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import artifacts_option

if TYPE_CHECKING:
    from rich.text import Text

    from plansmith.cli.doctor.findings import Examination, Finding

_MARKS = {"ok": "✓", "optional": "–", "warning": "!", "problem": "✗"}
_PLAIN_MARKS = {"ok": "+", "optional": "-", "warning": "!", "problem": "X"}
_STYLES = {"ok": "green", "optional": "dim", "warning": "yellow", "problem": "bold red"}
_NARROWEST = 40


@click.command("doctor")
@artifacts_option("The folder that compiles write to.")
@click.option("--offline", is_flag=True, help="Ask no service: no Prefect API, no registry, no store.")
@click.option("--deep", is_flag=True, help="Import every package, and start Triton without a model: half a minute.")
@click.option("--strict", is_flag=True, help="Warnings count for the exit code too.")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as one JSON document.")
def doctor_command(*, artifacts: Path, offline: bool, deep: bool, strict: bool, as_json: bool) -> None:
    """Report what this machine can do, and what is missing.

    \b
    plansmith doctor
    plansmith doctor --deep --strict
    plansmith doctor --offline --json

    Exit code 9 when a plain compile (ONNX Runtime, checked on a running Triton) would lack something, otherwise 0.
    """
    from plansmith.cli.compile.progress import MovingLine
    from plansmith.cli.doctor.examination import examine

    with MovingLine() as line:
        line.tell("looking around")
        examination = examine(artifacts, online=not offline, deep=deep, strict=strict, progress=line.tell)
    if as_json:
        click.echo(json.dumps(examination.to_dict()))
    else:
        _show(examination)
    sys.exit(examination.exit_code)


def _show(examination: Examination) -> None:
    """Print whole lines for a pipe and wrapped ones for a terminal.

    A remedy that several findings in a row have stands below the last of them.
    """
    from plansmith.cli.output import open_console

    console = open_console()
    width = max(console.width, _NARROWEST) if console.is_terminal else None
    marks = _marks()
    names = max(len(finding.name) for finding in examination.findings)
    with console.capture() as shown:
        for area, findings in groupby(examination.findings, lambda finding: finding.area):
            console.print(area, style="bold", markup=False)
            for _, alike in groupby(findings, lambda finding: finding.remedy):
                *others, last = alike
                for finding in others:
                    console.print(_lines(replace(finding, remedy=""), marks, names, width))
                console.print(_lines(last, marks, names, width))
            console.print()
        console.print(_legend(examination, marks), markup=False)
        console.print(examination.verdict, style="bold", markup=False)
        for number, command in enumerate(examination.commands):
            console.print(f"{'      ' if number else 'Next: '}{command}", markup=False)
    click.echo(shown.get(), nl=False)


def _legend(examination: Examination, marks: dict[str, str]) -> str:
    """Return the legend of the marks, with the count of each."""
    from plansmith.cli.doctor.findings import Severity

    counts = {severity: examination.count(severity) for severity in Severity}
    return "  ".join(f"{marks[severity]} {severity}: {count}" for severity, count in counts.items() if count)


def _lines(finding: Finding, marks: dict[str, str], names: int, width: int | None) -> Text:
    """Format a finding in aligned columns: mark, name and finding; below it, what needs it and the remedy."""
    from rich.text import Text

    severity = finding.severity.value
    paragraphs = [finding.found]
    if finding.needed_for:
        paragraphs[0] += f"; needed for {finding.needed_for}"
    if finding.remedy:
        paragraphs.append(f"{_arrow(marks)} {finding.remedy}")
    indent = " " * (names + 6)
    wrapped = [
        line for paragraph in paragraphs for line in (_wrap(paragraph, width - len(indent)) if width else [paragraph])
    ]
    text = Text().append(f"  {marks[severity]} ", style=_STYLES[severity])
    text.append(f"{finding.name:<{names}}  ")
    text.append(f"\n{indent}".join(wrapped), style="dim" if severity == "optional" else "")
    return text


def _wrap(text: str, width: int) -> list[str]:
    """Wrap lines to a width, without breaking paths and options."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _marks() -> dict[str, str]:
    """Return marks that standard output can encode."""
    try:
        "✓–✗→".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _PLAIN_MARKS
    return _MARKS


def _arrow(marks: dict[str, str]) -> str:
    return "→" if marks is _MARKS else "->"
