"""Plan, models and requests of a load test, built from the command's options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.config.data import DataSpec
    from plansmith.loadtest.payloads.source import RequestOptions
    from plansmith.loadtest.plan_file import ModelShare, PlanFile
    from plansmith.loadtest.stages import LoadPlan, StopConditions

_SHAPE = re.compile(r"[1-9]\d*(x[1-9]\d*)*")
_LOADS = ("users", "ramp", "rate", "trace", "plan")


@dataclass(frozen=True)
class RequestedTest:
    """Requested load test.

    Attributes:
        plan: the stages.
        models: the mix.
        options: how requests are made and sent.
    """

    plan: LoadPlan
    models: tuple[ModelShare, ...]
    options: RequestOptions


def read_test(names: Sequence[str], options: Mapping[str, Any]) -> RequestedTest:
    """Read the requested test.

    Args:
        names: the models, each MODEL[@VERSION][=WEIGHT].
        options: of the command.

    Raises:
        UsageError: contradicting options, one that cannot be read, or a plan with every problem at once.
    """
    from pydantic import ValidationError

    from plansmith.config.spec import problem_of, refusal
    from plansmith.loadtest.stages import schedule_stages

    file = _plan_file(options)
    try:
        plan = _with_options(file.plan() if file is not None else _typed_plan(options), options)
    except ValidationError as invalid:
        raise refusal([problem_of(error, {}) for error in invalid.errors()], subject="the load") from None
    schedule_stages(plan)
    models = _models(file, names, options)
    return RequestedTest(plan, models, _request_options(file, plan, options))


def _plan_file(options: Mapping[str, Any]) -> PlanFile | None:
    from plansmith.loadtest.plan_file import read_plan

    loads = [f"--{name}" for name in _LOADS if options[name] is not None]
    if len(loads) > 1:
        raise UsageError(f"{' and '.join(loads)} give different loads", remedy="pass one of them, or none")
    for name, needs in (("poisson", "rate"), ("spawn_rate", "users")):
        if options[name] and options[needs] is None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --{needs}", remedy=f"pass --{needs}, too")
    if options["seconds"] and not (options["users"] or options["rate"] or not loads):
        raise UsageError(f"--seconds goes with --users and --rate, and not with {loads[0]}", remedy="leave it out")
    return read_plan(options["plan"]) if options["plan"] is not None else None


def _typed_plan(options: Mapping[str, Any]) -> LoadPlan:
    """Return the load plan from the options, or the default: users that double."""
    from plansmith.loadtest import plan_file as reader
    from plansmith.loadtest.stages import LoadPlan, Stage

    seconds = reader.read_duration(options["seconds"], "--seconds") if options["seconds"] else None
    if options["ramp"] is not None:
        warm_up, stages = reader.read_ramp(options["ramp"])
        return LoadPlan(stages=stages, warm_up=warm_up)
    if options["rate"] is not None:
        arrivals = "poisson" if options["poisson"] else "constant"
        fields = {"arrivals": arrivals, "seconds": seconds or reader.DEFAULT_RATE_SECONDS}
        rates = reader.read_numbers(options["rate"], "--rate", whole=False)
        return LoadPlan(stages=tuple(Stage.model_validate({"rate": rate, **fields}) for rate in rates))
    if options["trace"] is not None:
        return LoadPlan(stages=(Stage(trace=str(options["trace"].absolute()), name=f"trace {options['trace'].name}"),))
    users: Sequence[float] = reader.DEFAULT_USERS
    if options["users"] is not None:
        users = reader.read_numbers(options["users"], "--users", whole=True)
    spawn_rate = options["spawn_rate"]
    if spawn_rate is not None and not 0 < spawn_rate < float("inf"):
        raise UsageError(f"--spawn-rate {spawn_rate:g} is no number above 0", remedy="write it like --spawn-rate 10")
    return LoadPlan(stages=reader.user_stages(users, seconds or reader.DEFAULT_USER_SECONDS, spawn_rate))


def _with_options(plan: LoadPlan, options: Mapping[str, Any]) -> LoadPlan:
    """Return the plan with the command line's settings applied."""
    from plansmith.loadtest.plan_file import read_duration
    from plansmith.loadtest.stages import LoadPlan

    update: dict[str, Any] = {"stop_when": _stop_conditions(plan.stop_when, options)}
    if options["pacing"]:
        update["pacing_seconds"] = read_duration(options["pacing"], "--pacing")
    if options["timeout"]:
        update["timeout_seconds"] = read_duration(options["timeout"], "--timeout")
    update |= {name: options[name] for name in ("processes", "seed") if options[name] is not None}
    if options["warm_up"]:
        warm_up = plan.with_warm_up().warm_up
        assert warm_up is not None
        update["warm_up"] = warm_up.model_dump() | {"seconds": read_duration(options["warm_up"], "--warm-up")}
    return LoadPlan.model_validate(plan.model_dump() | update)


def _stop_conditions(conditions: StopConditions, options: Mapping[str, Any]) -> dict[str, Any]:
    from plansmith.loadtest.plan_file import read_milliseconds, read_share

    update: dict[str, Any] = {}
    if options["stop_p95"] and options["stop_p99"]:
        raise UsageError("--stop-p95 and --stop-p99 are two limits, and there is one", remedy="pass one of the two")
    for percentile in (95, 99):
        if text := options[f"stop_p{percentile}"]:
            milliseconds = read_milliseconds(text, f"--stop-p{percentile}")
            update["latency"] = {"percentile": percentile, "milliseconds": milliseconds}
    for field, name in (("error_rate", "stop_error_rate"), ("flat_throughput", "stop_flat"), ("confidence",) * 2):
        if options[name]:
            update[field] = read_share(options[name], f"--{name.replace('_', '-')}")
    if options["stop_invocations"]:
        update["invocations_per_minute"] = options["stop_invocations"]
    return conditions.model_dump() | update


def _models(file: PlanFile | None, names: Sequence[str], options: Mapping[str, Any]) -> tuple[ModelShare, ...]:
    from plansmith.loadtest.plan_file import read_numbers, repeated_model

    models = file.models if file is not None else ()
    if models and names:
        raise UsageError(
            f"the plan {options['plan']} has the models, and {', '.join(names)} is named, too",
            remedy="name none beside the plan, or leave `models` out of it",
        )
    if options["interface"] is not None and not names:
        names = [options["interface"].name.partition(".")[0]]
    models = models or tuple(_model_share(name) for name in names)
    if not models:
        raise UsageError("no model is named", remedy="plansmith loadtest MODEL; see --help")
    if repeated := repeated_model(models):
        raise UsageError(
            f"{repeated} is named twice", remedy=f"name it once, or each with a version of its own: {repeated}@1"
        )
    update: dict[str, Any] = {}
    if options["data"] is not None:
        update["data"] = _data(options["data"])
    if options["batches"]:
        update["batches"] = tuple(map(int, read_numbers(options["batches"], "--batch", whole=True)))
    return _with_target_models(tuple(share.model_copy(update=update) for share in models), options["target_models"])


def _with_target_models(models: tuple[ModelShare, ...], texts: Sequence[str]) -> tuple[ModelShare, ...]:
    """Return the models with their target archives, each ARCHIVE or MODEL=ARCHIVE."""
    archives = {}
    for text in texts:
        model, equals, archive = text.rpartition("=")
        names = [share.model for share in models if not equals or model in {share.model, share.name}]
        if len(names) != 1 or not archive:
            raise UsageError(
                f"--target-model {text} names the archive of {len(names) or 'no'} models of {len(models)}",
                remedy="write it like --target-model minilm=minilm-3-0a1b2c3d.tar.gz",
            )
        archives[names[0]] = archive
    return tuple(
        share.model_copy(update={"target_model": archives.get(share.model, share.target_model)}) for share in models
    )


def _model_share(text: str) -> ModelShare:
    from plansmith.loadtest.plan_file import ModelShare

    name, equals, weight = text.partition("=")
    try:
        share = float(weight) if equals else 1.0
    except ValueError:
        share = 0.0
    if not name or not 0 < share < float("inf"):
        raise UsageError(f"{text!r} is not MODEL[@VERSION][=WEIGHT]", remedy="write it like minilm, or resnet@3=0.5")
    return ModelShare(model=name, weight=share)


def _data(path: Path) -> DataSpec:
    from plansmith.config.data import DataSpec

    return DataSpec(path=str(path.absolute()))


def _request_options(file: PlanFile | None, plan: LoadPlan, options: Mapping[str, Any]) -> RequestOptions:
    from plansmith.cli.infer.infer import read_parameters
    from plansmith.cli.infer.inputs import read_document
    from plansmith.loadtest.payloads.source import RequestOptions
    from plansmith.system.urls import read_header

    protocol = options["protocol"] or (file.protocol if file is not None else None)
    encoding = options["encoding"] or (file.encoding if file is not None else "binary")
    is_grpc = protocol == "grpc" or (protocol is None and (options["url"] or "").startswith("grpc"))
    if is_grpc and encoding == "json":
        raise UsageError("gRPC has no JSON bodies", remedy="leave --encoding out, or use http")
    if options["requests"] and options["data"] is not None:
        raise UsageError("--request and --data both say what is sent", remedy="leave one of the two out")
    return RequestOptions(
        protocol=protocol,
        encoding=encoding,
        count=options["count"] or (file.requests if file is not None else 64),
        seed=plan.seed,
        requests=tuple(read_document(path) for path in options["requests"]),
        shapes=_shapes(options["shapes"]),
        parameters=read_parameters(options["parameters"]),
        headers=dict(read_header(text, "a --header") for text in options["headers"]),
        timeout_seconds=plan.timeout_seconds,
    )


def _shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse the shapes of random inputs: each NAME=4x64, batch first."""
    shapes = {}
    for text in texts:
        name, _, shape = text.partition("=")
        if not name or not _SHAPE.fullmatch(shape):
            raise UsageError(f"--shape {text!r} is not NAME=SIZES", remedy="write it like --shape input_ids=4x64")
        shapes[name] = tuple(int(size) for size in shape.split("x"))
    return shapes
