"""`plansmith tune`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import (
    complete_file,
    complete_release,
    complete_target,
    read_names,
    read_numbers,
    repository_option,
)
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.sagemaker.prices import Price
    from plansmith.system.urls import Protocol
    from plansmith.tuning.builds import TunedModel
    from plansmith.tuning.configuration import SpaceOptions
    from plansmith.tuning.objective import Goal
    from plansmith.tuning.result import TuningResult
    from plansmith.tuning.trials.runner import TuningLoad
    from plansmith.tuning.tune import TuningRequest


PRICE_OPTIONS = (
    click.option(
        "--instance-type", metavar="TYPE", default="", help="For the cost: SageMaker's list price of this type."
    ),
    click.option(
        "--prices",
        metavar="FILE",
        type=click.Path(path_type=Path),
        shell_complete=complete_file,
        help="Your own prices as YAML: usd_per_hour, by instance type.",
    ),
    click.option("--usd-per-hour", metavar="USD", type=float, help="For the cost: the price of an hour."),
)

SERVER_OPTIONS = (
    click.option(
        "--target",
        default="",
        metavar="NAME",
        shell_complete=complete_target,
        help="Which target of a spec with several.",
    ),
    repository_option("Where the model's releases are."),
    click.option(
        "--tritonserver",
        type=click.Path(path_type=Path),
        metavar="PATH",
        shell_complete=complete_file,
        help="Server [found].",
    ),
    click.option(
        "--url",
        metavar="URL",
        default="",
        help="A running Triton in explicit mode, which is sent each configuration: http://host:8000 or"
        " grpc://host:8001, which takes models above 64 MB, too.",
    ),
)
REQUEST_OPTIONS = (
    click.option("--protocol", type=click.Choice(["http", "grpc"]), help="[grpc where the URL says so, else http]"),
    click.option("--encoding", type=click.Choice(["binary", "json"]), default="binary", show_default=True),
)
_FILE = click.Path(path_type=Path)
_ENGINES = ("python", "onnxruntime", "tensorrt")
_PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_MAX_COPIES = 1024
_MODEL = (
    click.option("--model", "picked", default="", metavar="NAME", help="Which model of a spec with several."),
    *SERVER_OPTIONS,
)
_GOAL = (
    click.option(
        "--objective",
        type=click.Choice(["throughput", "latency", "cost"]),
        default="throughput",
        show_default=True,
        help="Highest throughput, lowest p95 latency, or lowest cost of a million inferences.",
    ),
    click.option(
        "--constraint",
        "constraints",
        metavar="LIMIT",
        multiple=True,
        help="p50, p90, p95 or p99<50ms, error_rate<1%, memory<2G, throughput>100; repeatable [error_rate<1%].",
    ),
    *PRICE_OPTIONS,
)
_LOAD = (
    click.option("--users", metavar="N", type=click.IntRange(min=1), help="Closed loop: concurrent users [8]."),
    click.option(
        "--rate", metavar="N", type=float, help="Open loop: requests per second; goes with --objective latency."
    ),
    click.option(
        "--batch", metavar="N", type=click.IntRange(min=1), default=1, show_default=True, help="Samples per request."
    ),
    *REQUEST_OPTIONS,
)
_SPACE = (
    click.option("--engines", metavar="LIST", help="Of python,onnxruntime,tensorrt [all]."),
    click.option("--precisions", metavar="LIST", help="Of fp32,fp16,bf16,int8 [by engine and device]."),
    click.option("--max-batch-sizes", metavar="LIST", help="Largest batches [powers of two that the model takes]."),
    click.option(
        "--preferred",
        metavar="LIST",
        help="Preferred batch sizes: none, full (the largest), half (that and half of it) [none,full].",
    ),
    click.option("--delays", metavar="LIST", help="Queue delays in microseconds [0,100,1000,5000]."),
    click.option("--instances", metavar="LIST", help="Instances of the model [powers of two, by the cores]."),
    click.option("--threads", metavar="LIST", help="Threads of an ONNX Runtime instance on a CPU [likewise]."),
)
_EFFORT = (
    click.option(
        "--budget",
        metavar="RUNS|TIME",
        help="Such as 40 or 20m, with the confirmation [a tenth of the full grid, and the confirmation].",
    ),
    click.option(
        "--seconds",
        metavar="N",
        type=click.FloatRange(0.5, 3600),
        default=12,
        show_default=True,
        help="Load of the longest runs; those of the screening are shorter.",
    ),
    click.option("--seed", metavar="N", type=click.IntRange(0), default=0, help="Determines the proposals [0]."),
    click.option("--retry-failed", is_flag=True, help="Try again what could not be served before."),
)
_RESULTS = (
    click.option("--apply", "is_applied", is_flag=True, help="Compile and publish what is significantly better."),
    click.option("--html", metavar="FILE", type=_FILE, shell_complete=complete_file, help="Write the page there too."),
    click.option("--dry-run", is_flag=True, help="Compile the builds; show space, budget and duration; serve nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    click.option("--quiet", is_flag=True, help="Print no progress."),
)


def read_price(instance_type: str, prices: Path | None, usd_per_hour: float | None) -> Price | None:
    """Read the price from the options; None if they give none.

    Raises:
        UsageError: they name two, a type without a known price, or a file with problems.
    """
    from plansmith.sagemaker.prices import find_price, make_price, read_prices

    if usd_per_hour is not None:
        if prices is not None:
            raise UsageError("--prices and --usd-per-hour are two prices", remedy="give one of them")
        return make_price(usd_per_hour, instance_type)
    if instance_type:
        return find_price(instance_type, prices)
    if prices is not None:
        read_prices(prices)
        raise UsageError("--prices is a list, and no instance type is named", remedy="add --instance-type TYPE")
    return None


def read_protocol(options: Mapping[str, Any]) -> Protocol:
    """Read the protocol of the requests.

    Raises:
        UsageError: the options name two servers, no address, or what the protocol does not have.
    """
    from plansmith.system.urls import read_address

    if options["url"] and options["tritonserver"] is not None:
        raise UsageError("--url and --tritonserver are two servers", remedy="name one")
    protocol: Protocol = options["protocol"] or "http"
    if options["url"]:
        protocol = read_address(options["url"], options["protocol"]).protocol
    if protocol == "grpc" and options["encoding"] == "json":
        raise UsageError("gRPC has no JSON bodies", remedy="leave out --encoding, or use --protocol http")
    return protocol


def put_on_server(models: Iterable[TunedModel], options: Mapping[str, Any]) -> list[TunedModel]:
    """Combine the models with the server of the options; errors as of `read_protocol`."""
    from plansmith.system.urls import read_address

    models, server = list(models), options["tritonserver"]
    if options["url"]:
        url = str(read_address(options["url"], options["protocol"]))
        return [replace(model, url=url) for model in models]
    if server is None:
        return models
    path = str(server.absolute())
    return [replace(model, spec=model.spec.model_copy(update={"tritonserver": path})) for model in models]


def tune_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all tuning options, in the order of the help."""
    options = (*_MODEL, *_GOAL, *_LOAD, *_SPACE, *_EFFORT, *_RESULTS)
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def read_request(name: str, options: Mapping[str, Any]) -> TuningRequest:
    """Read the request from the command line; reports every problem before any work.

    Raises:
        UsageError: an option is wrong, or two contradict each other.
        RepositoryError: there is no such release.
    """
    from plansmith.tuning.budget import parse_budget
    from plansmith.tuning.builds import find_model
    from plansmith.tuning.tune import TuningRequest

    goal = _read_goal(options)
    load = _read_load(options)
    if load.rate is not None and goal.objective != "latency":
        raise UsageError(
            f"--rate {load.rate:g} is the throughput itself: all configurations that keep up are equal",
            remedy="look for the lowest latency at that rate (--objective latency), or use --users",
        )
    space = _read_space(options)
    seconds = options["seconds"]
    budget = parse_budget(options["budget"], seconds=seconds) if options["budget"] else None
    engines = read_names("--engines", options["engines"], _ENGINES)
    precisions = read_names("--precisions", options["precisions"], _PRECISIONS)
    model = find_model(name, options["repository"], picked=options["picked"], target=options["target"])
    (model,) = put_on_server([model], options)
    return TuningRequest(
        model,
        goal,
        load,
        space,
        engines,
        precisions,
        budget,
        seconds=seconds,
        seed=options["seed"],
        retry_failed=options["retry_failed"],
    )


def _read_goal(options: Mapping[str, Any]) -> Goal:
    from plansmith.tuning.objective import Goal, parse_constraints

    constraints = parse_constraints(options["constraints"])
    if options["url"] and any(constraint.quantity == "memory" for constraint in constraints):
        raise UsageError(
            "a running Triton does not tell what memory a model takes",
            remedy="leave out the constraint on memory, or --url",
        )
    instance_type, prices, usd_per_hour = (options[key] for key in ("instance_type", "prices", "usd_per_hour"))
    if options["objective"] != "cost":
        if instance_type or prices is not None or usd_per_hour is not None:
            raise UsageError(
                f"a price has no influence on the {options['objective']}",
                remedy="add --objective cost, or leave the price out",
            )
        return Goal(objective=options["objective"], constraints=constraints)
    price = read_price(instance_type, prices, usd_per_hour)
    if price is None:
        raise UsageError(
            "--objective cost needs the price of an hour",
            remedy="add --instance-type TYPE, such as ml.g5.xlarge, or --usd-per-hour USD",
        )
    source = ", ".join(filter(None, [price.instance_type, price.source]))
    return Goal(objective="cost", constraints=constraints, usd_per_hour=price.usd_per_hour, price_source=source)


def _read_load(options: Mapping[str, Any]) -> TuningLoad:
    from pydantic import ValidationError

    from plansmith.config.spec import problem_of, refusal
    from plansmith.tuning.trials.runner import TuningLoad

    users, rate = options["users"], options["rate"]
    if users and rate is not None:
        raise UsageError("--users and --rate are two loads", remedy="give one of them")
    others = {"batch": options["batch"], "protocol": read_protocol(options), "encoding": options["encoding"]}
    load = TuningLoad.model_construct(users=None if rate is not None else users or 8, rate=rate, **others)
    try:
        load.plan(options["seconds"])
    except ValidationError as invalid:
        problems = [problem_of(error, {}) for error in invalid.errors()]
        raise refusal(problems, subject="the load", remedy="choose a load that can be generated") from None
    return load


def _read_space(options: Mapping[str, Any]) -> SpaceOptions:
    from plansmith.tuning.configuration import PREFERENCES, SpaceOptions

    return SpaceOptions.model_validate(
        {
            "max_batch_sizes": read_numbers("--max-batch-sizes", options["max_batch_sizes"]),
            "preferences": read_names("--preferred", options["preferred"], PREFERENCES),
            "queue_delays": read_numbers("--delays", options["delays"], least=0),
            "instances": read_numbers("--instances", options["instances"], most=_MAX_COPIES),
            "threads": read_numbers("--threads", options["threads"], most=_MAX_COPIES),
        }
    )


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
    from plansmith.cli.output import echo_lines, require_text
    from plansmith.cli.tune.progress import TuneProgress, plan_document, plan_lines, result_document, result_lines
    from plansmith.loadtest.runner.load_runner import require_locust
    from plansmith.tuning.report.page import require_acceptable
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
    """Check, before a long search, that its report page can be written."""
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        reason = "is a folder" if html.is_dir() else "is in no folder that exists"
        raise UsageError(f"--html {html} {reason}", remedy="name a file in an existing folder")


def _store_page(result: TuningResult, request: TuningRequest, html: Path | None) -> Path:
    """Write the report page next to the result and, if requested, to a file; return its path."""
    from plansmith.cli.output import write_output
    from plansmith.tuning.report.page import render_page, store_page

    page = store_page(result, request.model.folder)
    if html is None:
        return page
    write_output(html, render_page(result), replace=True, option="--html")
    return html


def _apply(request: TuningRequest, result: TuningResult, *, quiet: bool) -> TuningResult:
    """Publish the best configuration and note that in the stored result."""
    from plansmith.cli.compile.progress import TerminalProgress
    from plansmith.tuning.builds import publish_changes
    from plansmith.tuning.tune import store_result

    with TerminalProgress(quiet=quiet) as listener:
        published, _ = publish_changes(request.model, result.changes, listener)
    applied = result.model_copy(update={"applied": f"{published.name}@{published.version}"})
    store_result(applied, request.model.folder)
    return applied
