"""`plansmith validate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_release, repository_option

if TYPE_CHECKING:
    from plansmith.records.validation import ValidationReport


@click.command("validate", short_help="Repeat the accuracy gate on a release.")
@click.argument("release", metavar="RELEASE", shell_complete=complete_release)
@repository_option("Where MODEL[@VERSION] is looked up.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def validate_command(release: str, repository: Path, as_json: bool) -> None:
    """Repeat the accuracy gate on a RELEASE: its folder, or MODEL[@VERSION] of a repository.

    The files are checked by digest first; the reference's answers lie in the release, so PyTorch is not needed.

    \b
    plansmith validate minilm
    plansmith validate minilm@3 --repository /srv/models
    plansmith validate artifacts/repository.plansmith/releases/minilm/3
    """
    from plansmith.cli.text import echo_lines
    from plansmith.errors import GateError
    from plansmith.report.text.precision import format_cosine
    from plansmith.steps.release.revalidate import find_release, revalidate
    from plansmith.triton.repository.release import read_manifest
    from plansmith.validation.gate import require_passed

    folder = find_release(release, repository)
    report = revalidate(folder)
    if as_json:
        click.echo(json.dumps({"release": str(folder), **report.model_dump(mode="json")}))
    else:
        click.echo(f"{folder}: {report.verdict}")
        click.echo(f"  {report.candidate} against {report.reference}, on {report.data}")
        for row in report.comparisons:
            mark = "!!" if row.failures else "ok"
            click.echo(
                f"  {mark} {row.case:<9} {'x'.join(map(str, row.shape)):<14} {row.output:<20}"
                f" largest error {row.max_relative:.1e}, 99 % below {row.quantile_relative:.1e},"
                f" cosine {format_cosine(row.min_cosine)}"
            )
        echo_lines(f"  {line}" for line in _evaluation_lines(report, read_manifest(folder).validation))
    try:
        require_passed(report)
    except GateError as error:  # the report is the document already
        click.echo(f"plansmith: {error}", err=True)
        sys.exit(error.exit_code)


def _evaluation_lines(report: ValidationReport, compiled: ValidationReport) -> Iterator[str]:
    """What the held-out samples showed when it was compiled (a release holds none), and what nothing has shown."""
    from plansmith.report.text.precision import describe_held_out, doubts, evaluation_lines

    if compiled.evaluation is not None:
        yield f"when it was compiled, {describe_held_out(compiled.evaluation)}:"
        for line, good in evaluation_lines(compiled.evaluation):
            yield f"{'ok' if good else '!!'} {line}"
    yield from doubts(report.model_copy(update={"evidence": compiled.evidence}))
