"""`plansmith zoo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import artifacts_option, complete_file

if TYPE_CHECKING:
    from plansmith.fleet.zoo.records import Zoo
    from plansmith.fleet.zoo.run import ZooOptions

_EPILOG = """\
\b
Examples:
  plansmith zoo --only '^bert|^timm:resnet'
  plansmith zoo --require 0.98 --require-axes 0.97 --html zoo.html
  plansmith zoo ours.yaml --jobs 1 --timeout 600
  plansmith zoo ours.yaml --compare-bare --json

Exit codes: 2 usage or list, 5 a required share was missed, 9 something missing on this machine, 130 interrupted.
"""
_SHARE = click.FloatRange(0, 1)


@click.command("zoo", short_help="Compile small random models, and judge each beside PyTorch.", epilog=_EPILOG)
@click.argument(
    "list_file", metavar="[LIST]", required=False, type=click.Path(path_type=Path), shell_complete=complete_file
)
@click.option("--only", metavar="REGEX", default="", help="Only entries whose name holds a match.")
@click.option("--jobs", type=click.IntRange(min=1), help="Entries at a time [number of cores].")
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(min=1), default=300, show_default=True, help="For an entry."
)
@click.option(
    "--memory", metavar="GIB", type=click.FloatRange(min=0.1), default=6, show_default=True, help="For an entry."
)
@click.option("--compare-bare", is_flag=True, help="Let plain torch.onnx.export try each model too.")
@click.option("--require", metavar="SHARE", type=_SHARE, help="End with exit code 5 where fewer are right, as 0.98.")
@click.option("--require-axes", metavar="SHARE", type=_SHARE, help="Likewise, for the axes that move.")
@click.option("--html", metavar="FILE", shell_complete=complete_file, help="Write the table as a page, too.")
@artifacts_option("Where finished results and logs go.")
@click.option("--force", is_flag=True, help="Run all entries again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def zoo_command(
    list_file: Path | None,
    *,
    only: str,
    require: float | None,
    require_axes: float | None,
    html: str | None,
    artifacts: Path,
    as_json: bool,
    quiet: bool,
    **manner: Any,
) -> None:
    """Compile every model of LIST with random weights, each in its own process, and evaluate the graphs.

    Without LIST it is the one that plansmith comes with, of some 190 models; in a checkout, configs/zoo.yaml.

    A graph is right when ONNX Runtime answers as PyTorch does (cosine 0.9999, largest error 0.001 of the largest value)
    at the traced shape, at smaller and larger sizes of every axis that PyTorch takes, and at other batches. What is
    finished is kept: the same command goes on where it was interrupted. An entry that was ended at a limit counts as
    finished, until --timeout or --memory are larger; one whose process died, or that lacked memory or room on the disk,
    is tried again.
    """
    from plansmith.cli.output import columns, echo_lines, write_output
    from plansmith.cli.runs.zoo_progress import ZooProgress, table_lines
    from plansmith.fleet.zoo.entries import pick, read_list, shipped_list
    from plansmith.fleet.zoo.run import Runner, run_list

    named = list_file or shipped_list()
    entries = pick(read_list(named), only)
    with ZooProgress(len(entries), quiet=quiet) as progress:
        zoo = run_list(Runner(artifacts / "zoo", _manner(**manner), progress), entries)
    if html is not None:
        from plansmith.fleet.zoo.html import render

        write_output(Path(html), render(zoo, named.name), replace=True)
    if as_json:
        click.echo(zoo.model_dump_json())
    else:
        echo_lines(table_lines(zoo, columns(sys.stdout) if sys.stdout.isatty() else 0))
    _require(zoo, require, require_axes)


def _manner(*, jobs: int | None, timeout: float, memory: float, compare_bare: bool, force: bool) -> ZooOptions:
    """Return the run settings from the option values; `memory` in GiB."""
    from plansmith.fleet.zoo.run import ZooOptions

    return ZooOptions(
        jobs=jobs or len(os.sched_getaffinity(0)),
        timeout=timeout,
        memory_bytes=int(memory * 2**30),
        compare_bare=compare_bare,
        force=force,
    )


def _require(zoo: Zoo, right: float | None, axes: float | None) -> None:
    """Check that the shares reach the requested minimum.

    Raises:
        GateError: they are not.
    """
    from plansmith.errors import GateError
    from plansmith.fleet.zoo.records import share

    total = zoo.summary.total
    missed = []
    if right is not None and share(total.right, total.entries) < right:
        missed.append(f"{total.right} of {total.entries} entries are right, {right:.1%} were required")
    if axes is not None and share(total.moving, total.axes) < axes:
        missed.append(f"{total.moving} of {total.axes} axes move, {axes:.1%} were required")
    if missed:
        raise GateError("; ".join(missed), remedy="see the rows that are not right, or ask for less")
