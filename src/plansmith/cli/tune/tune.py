"""`plansmith tune`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_release
from plansmith.cli.tune.options import read_request, tune_options
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.tuning.result import TuningResult
    from plansmith.tuning.tune import TuningRequest


@click.command("tune", short_help="Search for the configuration that serves a model best.")
@click.argument("model", metavar="MODEL[@VERSION]|SPEC.yaml", shell_complete=complete_release)
@tune_options
def tune_command(model: str, **options: Any) -> None:
    """Search engines, precisions, batching, instances and threads for the configuration that serves a model best.

    MODEL is a release of the repository, SPEC.yaml what one is compiled from. Each engine and precision is compiled
    once into a repository of the search; what fails the accuracy gate is left out. Then come short runs of many
    configurations under load, longer ones of the best, and a confirmation: the best and the current configuration in
    turn, with an interval of the gain. Each run has a Triton of its own; with --url each configuration is sent to a
    running one, and unloaded from it afterwards.

    Finished runs are kept in <artifacts>/tuning/<model> and used again: an interrupted search is resumed by the same
    command. Nothing is published without --apply.

    \b
    plansmith tune minilm
    plansmith tune minilm --objective throughput --constraint "p95<50ms" --users 16
    plansmith tune minilm@3 --objective latency --rate 200 --engines onnxruntime --budget 20m
    plansmith tune configs/models/resnet18-random.yaml --objective cost --instance-type ml.c5.xlarge --dry-run
    plansmith tune minilm --constraint "p99<80ms" --constraint "memory<2G" --apply
    plansmith tune minilm --url grpc://gpu-box:8001 --objective latency

    \b
    Exit codes: 2 usage or spec; 3 source; 4 export; 5 no configuration meets the constraints; 6 engine or target;
    7 repository; 8 none could be served; 9 something is missing on this machine; 130 interrupted.
    """
    from plansmith.cli.text import echo_lines, require_text
    from plansmith.cli.tune.progress import TuneProgress
    from plansmith.cli.tune.table import plan_document, plan_lines, result_document, result_lines
    from plansmith.loadtest.runner.run import require_locust
    from plansmith.tuning.report.findings import require_acceptable
    from plansmith.tuning.sampler import require_optuna
    from plansmith.tuning.tune import prepare_search

    require_text(model)
    quiet, dry_run, is_applied = options["quiet"] or options["as_json"], options["dry_run"], options["is_applied"]
    if is_applied and dry_run:
        raise click.UsageError("a dry run publishes nothing: leave out --apply or --dry-run")
    _require_place(options["html"])
    request = read_request(model, options)
    if not dry_run:
        require_locust()
        require_optuna()
    result: TuningResult | None = None
    with ExitStack() as stack:
        with TuneProgress(request.goal, quiet=quiet) as progress:
            prepared = stack.enter_context(prepare_search(request, progress))
            if not dry_run:
                result = prepared.run()
        if result is None:
            document, lines = plan_document(prepared), plan_lines(prepared)
        else:
            page = _store_page(result, request, options["html"])
            require_acceptable(result)
            if is_applied and result.is_better:
                result = _apply(request, result, quiet=quiet)
                page = _store_page(result, request, options["html"])
            document, lines = result_document(result, page), result_lines(result, page)
    if options["as_json"]:
        click.echo(json.dumps(document))
    else:
        echo_lines(lines)


def _require_place(html: Path | None) -> None:
    """Check, before a long search, that its page can be written."""
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        reason = "is a folder" if html.is_dir() else "is in no folder that exists"
        raise UsageError(f"--html {html} {reason}", remedy="name a file in an existing folder")


def _store_page(result: TuningResult, request: TuningRequest, html: Path | None) -> Path:
    """Write the page beside the result and, where it was asked for, into a file; that is the answer."""
    from plansmith.cli.text import write_output
    from plansmith.tuning.report.page import render_page, store_page

    page = store_page(result, request.model.folder)
    if html is None:
        return page
    write_output(html, render_page(result), replace=True, option="--html")
    return html


def _apply(request: TuningRequest, result: TuningResult, *, quiet: bool) -> TuningResult:
    """Publish the best configuration; the stored result says so."""
    from plansmith.cli.compile.progress import TerminalProgress
    from plansmith.tuning.apply import publish_changes
    from plansmith.tuning.tune import store_result

    with TerminalProgress(quiet=quiet) as listener:
        published, _ = publish_changes(request.model, result.changes, listener)
    applied = result.model_copy(update={"applied": f"{published.name}@{published.version}"})
    store_result(applied, request.model.folder)
    return applied
