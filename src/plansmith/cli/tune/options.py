"""Options of `plansmith tune`, by topic, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, read_names, read_numbers
from plansmith.cli.tune.price import PRICE_OPTIONS, read_price
from plansmith.cli.tune.server import REQUEST_OPTIONS, SERVER_OPTIONS, put_on_server, read_protocol
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.tuning.objective import Goal
    from plansmith.tuning.search_space import SpaceOptions
    from plansmith.tuning.trials.served_benchmark import TuningLoad
    from plansmith.tuning.tune import TuningRequest

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


def tune_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, in the order of the help."""
    options = (*_MODEL, *_GOAL, *_LOAD, *_SPACE, *_EFFORT, *_RESULTS)
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def read_request(name: str, options: Mapping[str, Any]) -> TuningRequest:
    """The request of a command line; all that is wrong with it is reported before any work.

    Raises:
        UsageError: an option is wrong, or two contradict each other.
        RepositoryError: there is no such release.
    """
    from plansmith.tuning.budget import parse_budget
    from plansmith.tuning.tune import TuningRequest
    from plansmith.tuning.tuned_model import find_model

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
    from plansmith.tuning.constraint import parse_constraints
    from plansmith.tuning.objective import Goal

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
    from plansmith.tuning.trials.served_benchmark import TuningLoad

    users, rate = options["users"], options["rate"]
    if users and rate is not None:
        raise UsageError("--users and --rate are two loads", remedy="give one of them")
    others = {"batch": options["batch"], "protocol": read_protocol(options), "encoding": options["encoding"]}
    load = TuningLoad.model_construct(users=None if rate is not None else users or 8, rate=rate, **others)
    try:
        load.plan(options["seconds"])
    except ValidationError as invalid:
        problems = [problem_of(error, {}) for error in invalid.errors()]
        raise refusal(problems, what="the load", remedy="choose a load that can be generated") from None
    return load


def _read_space(options: Mapping[str, Any]) -> SpaceOptions:
    from plansmith.tuning.search_space import PREFERENCES, SpaceOptions

    return SpaceOptions.model_validate(
        {
            "max_batch_sizes": read_numbers("--max-batch-sizes", options["max_batch_sizes"]),
            "preferences": read_names("--preferred", options["preferred"], PREFERENCES),
            "queue_delays": read_numbers("--delays", options["delays"], least=0),
            "instances": read_numbers("--instances", options["instances"], most=_MAX_COPIES),
            "threads": read_numbers("--threads", options["threads"], most=_MAX_COPIES),
        }
    )
