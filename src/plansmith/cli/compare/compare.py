"""`plansmith compare`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_release, read_names, read_numbers
from plansmith.cli.tune.tune import (
    PRICE_OPTIONS,
    REQUEST_OPTIONS,
    SERVER_OPTIONS,
    put_on_server,
    read_price,
    read_protocol,
)
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.loadtest.stages import LoadPlan
    from plansmith.tuning.builds import TunedModel
    from plansmith.tuning.comparison.cells import Grid
    from plansmith.tuning.comparison.compare import ComparisonRequest
    from plansmith.tuning.comparison.figures import Pricing

_ENGINES = ("python", "onnxruntime", "tensorrt")
_BATCHING = {"off": False, "on": True}
_MAX_INSTANCES, _MAX_ROUNDS = 1024, 1000
_MAX_WARM_UP_SECONDS = 5.0
_MAX_ERROR_RATE = 0.1

_EPILOG = """\
\b
Examples:
  plansmith compare minilm
  plansmith compare configs/models/published-random.yaml --model resnet50-random --seconds 5
  plansmith compare minilm --instance-type ml.g5.xlarge --target-rate 400 --headroom 0.2 --p95-below 50
  plansmith compare minilm --engines onnxruntime --instances 1,2,4 --users 1,8,32 --csv comparison.csv
  plansmith compare minilm --usd-per-hour 0.42 --dry-run

Exit codes: 0 a cell or more was measured; 2 usage or spec; 3 source; 4 export; 5 accuracy gate; 6 engine or target; 7
repository or folder; 8 no cell could be measured; 9 something is missing on this machine; 130 interrupted: the same
command resumes it.
"""

_OPTIONS = (
    click.option("--model", "picked", metavar="NAME", multiple=True, help="Only this model of a spec; repeatable."),
    *SERVER_OPTIONS,
    click.option(
        "--engines",
        metavar="LIST",
        help="Of python,onnxruntime,tensorrt [python and what the target serves best].",
    ),
    click.option("--batching", metavar="LIST", default="off,on", show_default=True, help="Dynamic batching."),
    click.option("--instances", metavar="LIST", default="1,2", show_default=True, help="Instances of the model."),
    click.option(
        "--users",
        metavar="LIST",
        default="1,10,20,40,80,120,160,200",
        show_default=True,
        help="Concurrent users, stage by stage; each sends one sample at a time.",
    ),
    click.option(
        "--seconds",
        metavar="N",
        type=click.FloatRange(0.5, 86_400),
        default=10,
        show_default=True,
        help="Load of each number of users.",
    ),
    click.option(
        "--rounds",
        metavar="N",
        type=click.IntRange(1, _MAX_ROUNDS),
        default=3,
        show_default=True,
        help="How often each cell is measured, in turn with the others.",
    ),
    click.option(
        "--p95-below",
        metavar="MS",
        type=click.FloatRange(0, min_open=True),
        help="A cell with a higher p95 latency has reached its limit.",
    ),
    *REQUEST_OPTIONS,
    *PRICE_OPTIONS,
    click.option(
        "--target-rate",
        metavar="N",
        type=click.FloatRange(0, min_open=True),
        help="For the cost: samples per second that instances have to answer.",
    ),
    click.option(
        "--headroom",
        metavar="SHARE",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.0,
        show_default=True,
        help="For the cost: share of an instance's rate that stays free.",
    ),
    click.option("--force", is_flag=True, help="Measure again what was measured before."),
    click.option(
        "--csv",
        "csv_file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        shell_complete=complete_file,
        help="Write a line for each cell, which replaces a file that is there.",
    ),
    click.option("--dry-run", is_flag=True, help="Show cells and the longest duration; compile and serve nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    click.option("--quiet", is_flag=True, help="Print no progress."),
)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


@click.command("compare", epilog=_EPILOG, short_help="Compare engines, batching and instances, and what they cost.")
@click.argument("model", metavar="MODEL[@VERSION]|SPEC.yaml", shell_complete=complete_release)
@_options
def compare_command(model: str, **options: Any) -> None:
    """Compare ways to serve models.

    PyTorch and a compiled engine, with and without dynamic batching, 1 and 2 instances.

    MODEL is a release of the repository, SPEC.yaml what one or several are compiled from. Each engine is compiled once
    into a repository of the comparison; each cell is served by a Triton of its own, under more and more users. All
    cells take turns in rounds, so that what else the machine does affects all of them alike. Nothing is published. With
    --url each cell is sent to a running Triton, and unloaded from it afterwards.

    With a price, each cell has a cost: of a million samples, and of the instances that a rate needs. Figures that
    others published of the models of configs/models/published.yaml are shown beside the measured ones.

    Finished cells are kept in <artifacts>/tuning/<model>: an interrupted comparison is resumed by the same command. A
    cell that fails is a row with its reason.
    """
    from plansmith.cli.compare.progress import CompareProgress, comparison_csv, comparison_lines
    from plansmith.cli.output import echo_lines, require_text, write_output
    from plansmith.loadtest.runner.load_runner import require_locust
    from plansmith.tuning.comparison.compare import run_comparison

    require_text(model)
    request = read_request(model, options)
    _require_place(options["csv_file"])
    if options["dry_run"]:
        _show_plan(request, as_json=options["as_json"])
        return
    require_locust()
    with CompareProgress(request, quiet=options["quiet"] or options["as_json"]) as progress:
        comparison = run_comparison(request, progress)
    if options["csv_file"] is not None:
        write_output(options["csv_file"], comparison_csv(comparison), replace=True, option="--csv")
    if options["as_json"]:
        click.echo(comparison.model_dump_json())
    else:
        echo_lines(comparison_lines(comparison))


def read_request(name: str, options: Mapping[str, Any]) -> ComparisonRequest:
    """Read the comparison from the command line; reports every problem before any work.

    Raises:
        UsageError: an option is wrong, or two contradict each other.
        RepositoryError: there is no such release.
    """
    from plansmith.tuning.builds import find_models
    from plansmith.tuning.comparison.compare import ComparisonRequest
    from plansmith.tuning.trials.runner import TuningLoad

    protocol = read_protocol(options)
    pricing = _read_pricing(options)
    models = find_models(name, options["repository"], picked=options["picked"], target=options["target"])
    return ComparisonRequest(
        models=tuple(put_on_server(models, options)),
        grid=_read_grid(models, options),
        plan=_read_plan(options),
        load=TuningLoad(users=1, protocol=protocol, encoding=options["encoding"]),
        rounds=options["rounds"],
        pricing=pricing,
        force=options["force"],
    )


def _read_grid(models: Sequence[TunedModel], options: Mapping[str, Any]) -> Grid:
    from plansmith.records.model import EngineKind
    from plansmith.tuning.comparison.cells import Grid, default_engines

    engines = tuple(map(EngineKind, read_names("--engines", options["engines"], _ENGINES)))
    return Grid(
        engines=engines or default_engines(models),
        batching=tuple(_BATCHING[name] for name in read_names("--batching", options["batching"], _BATCHING)),
        instances=read_numbers("--instances", options["instances"], most=_MAX_INSTANCES),
    )


def _read_plan(options: Mapping[str, Any]) -> LoadPlan:
    from plansmith.loadtest.stages import LatencyLimit, LoadPlan, Stage, StopConditions

    seconds, limit = options["seconds"], options["p95_below"]
    users = read_numbers("--users", options["users"])
    return LoadPlan(
        stages=tuple(Stage(users=count, seconds=seconds) for count in users),
        warm_up=Stage(users=users[0], seconds=min(seconds, _MAX_WARM_UP_SECONDS)),
        stop_when=StopConditions(
            latency=LatencyLimit(milliseconds=limit) if limit else None, error_rate=_MAX_ERROR_RATE
        ),
    )


def _read_pricing(options: Mapping[str, Any]) -> Pricing:
    from plansmith.tuning.comparison.figures import Pricing

    price = read_price(options["instance_type"], options["prices"], options["usd_per_hour"])
    rate, headroom = options["target_rate"], options["headroom"]
    if price is None and (rate is not None or headroom):
        raise UsageError(
            f"{'--target-rate' if rate is not None else '--headroom'} is about the number of instances and their cost",
            remedy="add --instance-type TYPE, such as ml.g5.xlarge, or --usd-per-hour USD",
        )
    return Pricing(price=price, target_rate=rate, headroom=headroom)


def _require_place(file: Path | None) -> None:
    """Check, before a long comparison, that its output file can be written."""
    if file is not None and not file.absolute().parent.is_dir():
        raise UsageError(f"--csv {file} is in no folder that exists", remedy="name a file in an existing folder")


def _show_plan(request: ComparisonRequest, *, as_json: bool) -> None:
    from plansmith.cli.output import echo_lines, printable
    from plansmith.formatting import count, format_seconds
    from plansmith.tuning.comparison.compare import find_obstacles

    obstacles = find_obstacles(request)
    if as_json:
        rows = [cell.model_dump(mode="json") | {"problem": obstacles.get(cell, "")} for cell in request.cells]
        document = {
            "dry_run": True,
            "cells": rows,
            "rounds": request.rounds,
            "plan": request.plan.model_dump(mode="json"),
            "load_seconds": request.load_seconds,
            "pricing": request.pricing.model_dump(mode="json"),
        }
        click.echo(json.dumps(document))
        return
    lines = []
    for model in request.models:
        cells = [cell for cell in request.cells if cell.model == model.name]
        lines.append(f"{model.name}: {count(len(cells), 'cell')}")
        for cell in cells:
            problem = f" ! {printable(obstacles[cell])}" if cell in obstacles else ""
            lines.append(f"  {cell.label}{problem}")
    users = ", ".join(str(stage.users) for stage in request.plan.stages)
    limit = request.plan.stages[0].seconds or 0
    price = request.pricing.price
    if price is not None:
        instance = f"{price.instance_type} at " if price.instance_type else ""
        lines.append(f"costs: {instance}${price.usd_per_hour:g} an hour ({price.source})")
    lines.append(f"load: {users} users, {limit:g} s each, in {count(request.rounds, 'round')}")
    lines.append(
        f"Nothing was compiled or served; the load takes {format_seconds(request.load_seconds)} at most, and the"
        " compiles and starts of Triton come on top"
    )
    echo_lines(lines)
