"""Options of `plansmith loadtest`, by topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from plansmith.cli.options import complete_file, complete_folder, repository_option

_FILE = click.Path(path_type=Path)

_LOAD = (
    click.option("--users", metavar="N[,N...]", help="Closed loop: concurrent users; a stage for each number."),
    click.option("--seconds", metavar="TIME", help="Duration of each stage [10s with --users, 30s with --rate]."),
    click.option("--spawn-rate", metavar="N", type=float, help="Users started per second [all at once]."),
    click.option(
        "--ramp",
        metavar="FIRST:LAST:STEPxTIME",
        help="FIRST users warm up, then STEP more every TIME; staged stands for 10:200:20x30s.",
    ),
    click.option("--rate", metavar="N[,N...]", help="Open loop: requests per second, independent of the answers."),
    click.option("--poisson", is_flag=True, help="Arrivals of --rate are a Poisson process."),
    click.option(
        "--trace",
        metavar="FILE",
        type=_FILE,
        shell_complete=complete_file,
        help="Open loop: recorded arrival times in seconds, one per line.",
    ),
    click.option(
        "--plan",
        metavar="FILE",
        type=_FILE,
        shell_complete=complete_file,
        help="Stages or phases, models and settings as YAML.",
    ),
    click.option("--warm-up", metavar="TIME", help="Load before anything is measured [5s]."),
    click.option("--pacing", metavar="TIME", help="Closed loop: least time between two requests of a user."),
    click.option("--timeout", metavar="TIME", help="How long an answer may take [60s]."),
    click.option("--stop-p95", metavar="TIME", help="End the test when the p95 latency of a stage exceeds this."),
    click.option("--stop-p99", metavar="TIME", help="The same for p99."),
    click.option("--stop-error-rate", metavar="SHARE", help="End it when a larger share of the requests fails: 1%."),
    click.option("--stop-flat", metavar="SHARE", help="End it when more load adds less throughput than this: 5%."),
    click.option(
        "--stop-invocations",
        metavar="N",
        type=click.IntRange(1),
        help="End it when a stage answers this many requests per minute, the most that are expected.",
    ),
    click.option(
        "--confidence",
        metavar="SHARE",
        help="End a stage when the 95 % confidence interval of its mean latency is within ± this: 2%.",
    ),
)

_REQUESTS = (
    click.option(
        "--data",
        metavar="FILE|DIR",
        type=_FILE,
        shell_complete=complete_file,
        help="Make requests of these data: texts, a table, arrays, images.",
    ),
    click.option(
        "--request",
        "requests",
        metavar="FILE.json",
        multiple=True,
        shell_complete=complete_file,
        help="Send this request: values by input, or a request of KServe's protocol.",
    ),
    click.option("--batch", "batches", metavar="N[,N...]", help="Samples per request [1 to the largest batch]."),
    click.option(
        "--count",
        metavar="N",
        type=click.IntRange(1, 100_000),
        help="Different requests per model, of at most 256 MiB together [64].",
    ),
    click.option(
        "--shape", "shapes", metavar="NAME=SIZES", multiple=True, help="Of a random input, batch first: 4x64."
    ),
    click.option("--parameter", "parameters", metavar="NAME=VALUE", multiple=True, help="Sent with each request."),
    click.option("--seed", metavar="N", type=click.IntRange(0), help="Determines random choices [0]."),
    click.option("--protocol", type=click.Choice(["http", "grpc"]), help="[grpc where the URL says so, else http]"),
    click.option("--encoding", type=click.Choice(["binary", "json"]), help="[binary]"),
    click.option("--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="Sent with each request."),
)

_SERVER = (
    click.option("--url", metavar="URL", help="A running Triton: http://host:8000 or grpc://host:8001."),
    click.option("--metrics", metavar="HOST:PORT", default="", help="With --url: its Prometheus metrics."),
    repository_option("Where the releases are; with --url, only if it is given."),
    click.option(
        "--endpoint",
        metavar="NAME|FILE.yaml",
        shell_complete=complete_file,
        help="An endpoint of SageMaker, by its name or its file; with --url, a front end of one without AWS.",
    ),
    click.option(
        "--target-model",
        "target_models",
        metavar="[MODEL=]ARCHIVE",
        multiple=True,
        help="Of a multi-model endpoint: the archive that answers, or that of a model.",
    ),
    click.option("--target-variant", metavar="NAME", default="", help="The variant to ask [each, by its weight]."),
    click.option("--region", metavar="NAME", default="", help="Of the endpoint [AWS_REGION, or the AWS profile's]."),
    click.option("--profile", metavar="NAME", default="", help="A profile of the AWS configuration files."),
    click.option(
        "--interface",
        metavar="FILE",
        type=_FILE,
        shell_complete=complete_file,
        help="With --endpoint: know the inputs by a manifest.json, a config.pbtxt, JSON or a .tar.gz, not a release.",
    ),
    click.option("--processes", metavar="N", type=click.IntRange(1, 1000), help="Client processes [1]."),
)

_WORKERS = (
    click.option(
        "--expect-workers",
        metavar="N",
        type=click.IntRange(1, 1000),
        help="Have the load come from so many client processes on other machines.",
    ),
    click.option("--listen", metavar="HOST:PORT", help="Where they are awaited [0.0.0.0:5557]; for trusted networks."),
    click.option("--worker", metavar="HOST:PORT", help="Be such a worker, of the test that listens there; no MODEL."),
)

_RESULTS = (
    click.option(
        "--output",
        metavar="FOLDER",
        type=_FILE,
        shell_complete=complete_folder,
        help="Takes report.json, report.html, stages.csv, timeline.csv and logs [artifacts/loadtests/NAME-TIME].",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON document."),
    click.option("--quiet", is_flag=True, help="Print no progress."),
    click.option("--dry-run", is_flag=True, help="Show the stages and requests; start and send nothing."),
)


def loadtest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, in the order of the help."""
    options = (*_LOAD, *_REQUESTS, *_SERVER, *_WORKERS, *_RESULTS)
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)
