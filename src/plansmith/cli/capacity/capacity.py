"""`plansmith capacity`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import repository_option, size_from_option
from plansmith.cli.output import echo_lines, printable, short
from plansmith.cli.store.options import complete_served
from plansmith.errors import EXIT_INTERRUPTED, UsageError

if TYPE_CHECKING:
    from plansmith.capacity.results import CapacityPlan, CapacityReport
    from plansmith.capacity.server import CopyServer
    from plansmith.sagemaker.signatures import ServedModel

_EPILOG = """\
\b
Examples:
  plansmith capacity minilm
  plansmith capacity minilm@3 resnet50 --share 0.8
  plansmith capacity minilm --memory 8G --max-copies 20
  plansmith capacity minilm --invocations 500 --popularity zipf:1.1
  plansmith capacity minilm --sagemaker --memory 4G
  plansmith capacity minilm --url grpc://gpu-box:8001 --share 0.8
  plansmith capacity minilm --dry-run
  plansmith capacity minilm --json

\b
Exit codes: 0 measured, also where a copy did not load or the server ended; 2 something is mistyped, or more memory is
stated than there is; 6, 7 a release that the server cannot serve, or that is not there; 8 not one copy loads, or one
fails to answer; 9 no server, or none whose memory can be read; 130 interrupted, with what was measured.
"""


@click.command("capacity", epilog=_EPILOG, short_help="Measure how many models fit into a Triton's memory.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL[@VERSION]...", shell_complete=complete_served)
@click.option("--share", type=float, default=0.9, show_default=True, help="Of memory that may be used.")
@click.option("--max-copies", type=int, metavar="N", help="Load no more copies than these.")
@click.option(
    "--memory",
    "memory_bytes",
    metavar="SIZE",
    callback=size_from_option,
    help="Host memory that the server and its copies may use: 8G, 512M [all of the machine].",
)
@click.option(
    "--timeout",
    type=float,
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long each load, unload and answer may take.",
)
@click.option("--sagemaker", is_flag=True, help="Through SageMaker's front end, as a multi-model endpoint.")
@click.option(
    "--invocations",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Then send so many random requests to more models than fit.",
)
@click.option(
    "--models",
    "model_count",
    type=int,
    metavar="N",
    help="How many models the random requests go to [twice as many as fit].",
)
@click.option(
    "--popularity",
    default="uniform",
    show_default=True,
    metavar="LAW",
    help="How often each is requested: uniform, zipf or zipf:1.2.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Determines the random requests.")
@click.option("--tritonserver", type=click.Path(path_type=Path), help="The server; found when left out.")
@click.option(
    "--url",
    metavar="URL",
    default="",
    help="A running Triton in explicit mode, which is sent the copies: http://host:8000 or grpc://host:8001.",
)
@click.option("--metrics", metavar="HOST:PORT", default="", help="With --url: its metrics [those of default ports].")
@repository_option("Where the releases are.")
@click.option("--dry-run", is_flag=True, help="Show what would be loaded, and load nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def capacity_command(
    models: tuple[str, ...], *, repository: Path, dry_run: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Load renamed copies of releases into a Triton until a share of its memory is used, or a load fails.

    Several releases are copied in turn. Each copy answers a request of its release once it is loaded, and again when
    all are. Before each load the memory that the copy will take is compared with what is left, so that the machine
    keeps the rest. In the end all copies are unloaded.

    With --url the copies are sent to a running Triton, whose metrics tell the memory of its machine.

    With --invocations random requests go to more models than fit: one that is not loaded is, and the least recently
    used is unloaded for it, as SageMaker's multi-model endpoints do.
    """
    from plansmith.capacity.measurement import Popularity, measure
    from plansmith.cli.capacity.progress import CapacityProgress
    from plansmith.cli.loadtest.target import terminable

    plan = _plan(options)
    popularity = Popularity.read(options["popularity"])
    served = _releases(models, repository)
    _require_one_server(options)
    if dry_run:
        _show_plan(served, plan, options, as_json=as_json)
        return
    log = _log_file(repository)
    options["repository"] = repository
    try:
        with terminable(), CapacityProgress(quiet=quiet or as_json) as progress:
            report = measure(_server(served, plan, log, options), plan, progress.callbacks, popularity)
    except KeyboardInterrupt:
        click.echo("plansmith: interrupted before a copy was loaded; nothing was measured", err=True)
        sys.exit(EXIT_INTERRUPTED)
    _show_report(report, log, as_json=as_json)


def _plan(options: Mapping[str, Any]) -> CapacityPlan:
    from plansmith.capacity.results import CapacityPlan

    return CapacityPlan(
        share=options["share"],
        max_copies=options["max_copies"],
        memory_bytes=options["memory_bytes"],
        timeout_seconds=options["timeout"],
        invocations=options["invocations"],
        models=options["model_count"],
        seed=options["seed"],
    )


def _releases(models: Sequence[str], repository: Path) -> list[ServedModel]:
    """Return the releases to copy; raise UsageError if two of them belong to the same model."""
    from plansmith.sagemaker.signatures import model_from_release
    from plansmith.triton.repository.repository import ModelRepository

    if not repository.is_dir():
        raise UsageError(f"{repository} does not exist", remedy="name the folder of the releases: --repository DIR")
    served = [model_from_release(ModelRepository(repository), model) for model in models]
    if len({model.name for model in served}) < len(served):
        raise UsageError("two releases of one model", remedy="name one release of each model")
    return served


def _show_report(report: CapacityReport, log: Path, *, as_json: bool) -> None:
    """Print the report and exit with the exit code of its failure."""
    from plansmith.cli.capacity.progress import report_lines

    if as_json:
        click.echo(report.model_dump_json())
    else:
        echo_lines([printable(line) for line in report_lines(report)])
    if report.ending == "interrupted":
        sys.exit(EXIT_INTERRUPTED)
    error = report.failure()
    if error is not None:
        click.echo(f"plansmith: {error.located(log=log if log.is_file() else None)}", err=True)
        sys.exit(error.exit_code)
    if report.ending in {"server-lost", "load-failed"} and not as_json and log.is_file():
        click.echo(f"log  {short(log)}")


def _server(
    models: Sequence[ServedModel], plan: CapacityPlan, log: Path, options: dict[str, Any]
) -> AbstractContextManager[CopyServer]:
    from plansmith.capacity.server import start_triton
    from plansmith.triton.server.installation import find_installation

    if options["url"]:
        from plansmith.capacity.remote import connect

        return nullcontext(connect(models, plan, options["url"], options["metrics"]))
    if options["sagemaker"]:
        from plansmith.capacity.front_end import start_front_end
        from plansmith.triton.repository.repository import ModelRepository

        repository = ModelRepository(options["repository"])
        return start_front_end(models, repository, plan, find_installation(options["tritonserver"]), log)
    return start_triton(models, plan, find_installation(options["tritonserver"]), log)


def _require_one_server(options: Mapping[str, Any]) -> None:
    """Refuse options for starting a server in combination with those for a running server."""
    if options["metrics"] and not options["url"]:
        raise UsageError("--metrics goes with --url", remedy="leave it out")
    own = {
        "--sagemaker": options["sagemaker"],
        "--tritonserver": options["tritonserver"],
        "--memory": options["memory_bytes"],
    }
    wrong = [name for name, value in own.items() if value]
    if options["url"] and wrong:
        raise UsageError(f"{wrong[0]} is about a server that is started here", remedy="leave it out, or --url")


def _show_plan(models: Sequence[ServedModel], plan: CapacityPlan, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what would be loaded and how much memory it needs."""
    import json

    from plansmith.capacity.results import host_pool
    from plansmith.copies.release import CopiedRelease
    from plansmith.formatting import format_bytes

    pool = host_pool(plan.memory_bytes, 0)
    if options["url"]:
        from plansmith.capacity.remote import connect

        pool = connect(models, plan, options["url"], options["metrics"]).meter.read()[0]
    copies = {copy.release: copy.file_bytes for copy in (CopiedRelease(model, "cpu") for model in models)}
    if as_json:
        document = {"copies": copies, "share": plan.share, "max_copies": plan.max_copies, "memory": pool.model_dump()}
        click.echo(json.dumps(document))
        return
    click.echo("would load copies, and loads none now (--dry-run)")
    echo_lines([f"  {release}: {format_bytes(size)} of files per copy" for release, size in copies.items()])
    free = format_bytes(max(0, pool.free_bytes(plan.share)))
    click.echo(f"  {free} of host memory are free within {plan.share:.0%} of {format_bytes(pool.total_bytes)}")
    if plan.max_copies is not None:
        click.echo(f"  at most {plan.max_copies} copies")


def _log_file(repository: Path) -> Path:
    from plansmith.cli.serve.serve import log_file

    return log_file(repository.absolute(), "capacity")
