"""Load test plan as a YAML file: stages or phases, and the requests that each model gets."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from plansmith.config.data import DataSpec
from plansmith.config.spec import Problem, problems_of, refusal
from plansmith.config.yaml_source import read_text
from plansmith.errors import UsageError
from plansmith.loadtest.stages import LoadPlan, Positive, Stage
from plansmith.records.fields import Count, PositiveCount
from plansmith.records.model import Record
from plansmith.system.urls import Protocol
from plansmith.triton.client import Encoding

DEFAULT_USERS = (1, 2, 4, 8, 16, 32)
DEFAULT_USER_SECONDS = 10.0
DEFAULT_RATE_SECONDS = 30.0

RAMPS = {"staged": "10:200:20x30s"}
"""Ramps by name. staged: 10 users warm up, then 20 more every 30 s, up to 200."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_RAMP = re.compile(r"(\d{1,9}):(\d{1,9}):\+?(\d{1,9})x(.+)")
_MAX_STAGES = 1000

_FORM = "a plan of a load test is a mapping with `stages` or `phases`"
_MIN_STEP_SECONDS = 10.0
"""Users that come faster than one in this time come together: a shorter stage would have too few requests."""


def read_duration(text: str, option: str) -> float:
    """Parse a duration into seconds: 200ms, 30s, 2m, 1h, or a number of seconds.

    Raises:
        UsageError: another form, or 0.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise UsageError(f"{option} {text!r} is no duration", remedy=f"write it like {option} 30s, 2m or 200ms")
    return seconds


def read_milliseconds(text: str, option: str) -> float:
    """Parse a latency into milliseconds: 200ms, 1.5s; a number without a unit is milliseconds.

    Raises:
        UsageError: another form, or 0.
    """
    plain = text.strip()
    return read_duration(f"{plain}ms" if plain.replace(".", "", 1).isdecimal() else plain, option) * 1000


def read_share(text: str, option: str) -> float:
    """Parse a share from 0 to 1: 0.01 or 1%.

    Raises:
        UsageError: another form.
    """
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"{option} {text!r} is no share", remedy=f"write it like {option} 1% or 0.01")
    return value


def read_numbers(text: str, option: str, *, whole: bool) -> tuple[float, ...]:
    """Parse positive numbers, separated by commas.

    Raises:
        UsageError: another form.
    """
    try:
        numbers = tuple(float(int(part)) if whole else float(part) for part in text.split(","))
    except (ValueError, OverflowError):
        numbers = (0.0,)
    if not all(0 < number < float("inf") for number in numbers):
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{option} {text!r} is no list of {kind} above 0", remedy=f"write it like {option} 10,20,40")
    return numbers


def user_stages(users: Sequence[float], seconds: float, spawn_rate: float | None = None) -> tuple[Stage, ...]:
    """Return one stage per number of users.

    Args:
        users: of the stages.
        seconds: of each stage with all of its users; the time in which they start is added.
        spawn_rate: users started or stopped per second; all at once when None.
    """
    stages, before = [], 0
    for count in map(int, users):
        ramp_seconds = abs(count - before) / spawn_rate if spawn_rate else 0.0
        stages.append(Stage(users=count, seconds=seconds + ramp_seconds, spawn_rate=spawn_rate))
        before = count
    return tuple(stages)


def read_ramp(text: str) -> tuple[Stage, tuple[Stage, ...]]:
    """Parse a ramp FIRST:LAST:STEPxTIME, or its name: FIRST users warm up, then STEP more every TIME, up to LAST.

    Returns:
        The warm-up and the stages.

    Raises:
        UsageError: another form, or users that do not grow.
    """
    match = _RAMP.fullmatch(RAMPS.get(text.strip(), text.strip()))
    if match is None:
        raise UsageError(
            f"--ramp {text!r} is not FIRST:LAST:STEPxTIME",
            remedy="write it like --ramp 10:200:20x30s, or --ramp staged for this one",
        )
    first, last, step = int(match[1]), int(match[2]), int(match[3])
    seconds = read_duration(match[4], "--ramp")
    if not 1 <= first < last or not step:
        raise UsageError(f"the users of --ramp {text!r} do not grow", remedy="write it like --ramp 10:200:20x30s")
    users = [min(count, last) for count in range(first + step, last + step, step)]
    if len(users) > _MAX_STAGES:
        raise UsageError(f"--ramp {text!r} has {len(users)} stages", remedy="take a larger step")
    return Stage(users=first, seconds=seconds), tuple(Stage(users=count, seconds=seconds) for count in users)


class Phase(Record):
    """Phase: closed-loop users whose number grows linearly.

    The fields are those of SageMaker's load tests:
    docs.aws.amazon.com/sagemaker/latest/APIReference/API_Phase.html.
    """

    InitialNumberOfUsers: Annotated[Count, Field(ge=1, le=1_000_000)] = Field(description="Users at its beginning.")
    SpawnRate: Annotated[Count, Field(ge=0, le=1_000_000)] = Field(default=0, description="New users per minute.")
    DurationInSeconds: Annotated[Count, Field(ge=1, le=7 * 86_400)] = Field(description="How long it takes.")

    def stages(self, number: int) -> Iterator[Stage]:
        """Return the phase as stages of constant users: at each time, the users started by then."""
        seconds = float(self.DurationInSeconds)
        step = max(60 / self.SpawnRate, _MIN_STEP_SECONDS) if self.SpawnRate else seconds
        starts = [place * step for place in range(max(1, math.floor(seconds / step)))]
        for start, end in zip(starts, [*starts[1:], seconds], strict=True):
            users = self.InitialNumberOfUsers + math.floor(start * self.SpawnRate / 60 + 1e-9)
            label = f"phase {number}: {users} user{'' if users == 1 else 's'}"
            yield Stage(name=label, users=users, seconds=round(end - start, 3))


class ModelShare(Record):
    """One model of the mix, with its share."""

    model: str = Field(min_length=1, description="Its name, or MODEL@VERSION.")
    weight: Positive = Field(default=1, description="Its share of the requests, in proportion to the other models'.")
    data: DataSpec | None = Field(
        default=None, description="Where its inputs come from; those that its release keeps when left out."
    )
    batches: tuple[PositiveCount, ...] = Field(
        default=(), description="Batch sizes of the requests; from 1 to the model's largest when left out."
    )
    target_model: str = Field(default="", description="Of a multi-model endpoint, the archive that answers.")

    @property
    def name(self) -> str:
        """The name without the version."""
        return self.model.partition("@")[0]

    @property
    def version(self) -> str:
        """The version; empty if none is named."""
        return self.model.partition("@")[2]


def repeated_model(models: Sequence[ModelShare]) -> str:
    """Return the first model that occurs twice without distinct versions; empty if there is none."""
    versions_by_name: dict[str, list[str]] = {}
    for share in models:
        versions = versions_by_name.setdefault(share.name, [])
        if versions and (share.version in versions or "" in {share.version, *versions}):
            return share.name
        versions.append(share.version)
    return ""


class PlanFile(LoadPlan):
    """Load test plan file."""

    stages: tuple[Stage, ...] = Field(default=(), description="In their order; or `phases`.")
    phases: tuple[Phase, ...] = Field(default=(), description="Stages as SageMaker's load tests describe them.")
    models: tuple[ModelShare, ...] = Field(default=(), description="The mix; the models of the command line if empty.")
    protocol: Protocol | None = Field(default=None, description="http or grpc; that of the URL, or http.")
    encoding: Encoding = Field(default="binary", description="Of the bodies: binary or json.")
    requests: PositiveCount = Field(default=64, description="Different requests per model, which are sent repeatedly.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.stages) == bool(self.phases):
            raise ValueError("give one of stages and phases")
        if name := repeated_model(self.models):
            raise ValueError(f"models has {name} twice: give each a version of its own")
        if self.protocol == "grpc" and self.encoding == "json":
            raise ValueError("gRPC has no JSON bodies: leave protocol or encoding out")
        return self

    def plan(self) -> LoadPlan:
        """Return the stages and their common settings."""
        fields = {name: getattr(self, name) for name in LoadPlan.model_fields}
        return LoadPlan(**fields | {"stages": self.stages or stages_of_phases(self.phases)})


def stages_of_phases(phases: Sequence[Phase]) -> tuple[Stage, ...]:
    """Convert consecutive phases to stages."""
    return tuple(stage for number, phase in enumerate(phases, 1) for stage in phase.stages(number))


def read_plan(path: Path) -> PlanFile:
    """Read a load test plan file; its paths are absolute in the result.

    Raises:
        UsageError: it cannot be read, or lists every problem with its line.
    """
    text = read_text(path, form=_FORM, examples="plansmith loadtest --help")
    problems = [*text.problems, *(text.placed(problem) for problem in _value_problems(text.values))]
    if not problems:
        plan = _with_absolute_paths(PlanFile.model_validate(text.values), path.absolute().parent)
        problems = [text.placed(problem) for problem in _missing_files(plan)]
    if problems:
        raise refusal(problems, subject="the plan of the load test")
    return plan


def _value_problems(values: dict[str, Any]) -> list[Problem]:
    try:
        PlanFile.model_validate(values)
    except ValidationError as invalid:
        return problems_of(invalid, values, PlanFile)
    return []


def _with_absolute_paths(plan: PlanFile, folder: Path) -> PlanFile:
    stages = tuple(_with_trace(stage, folder) for stage in plan.stages)
    warm_up = plan.warm_up and _with_trace(plan.warm_up, folder)
    models = tuple(
        share.model_copy(update={"data": share.data.model_copy(update={"path": str(folder / share.data.path)})})
        if share.data is not None and share.data.path
        else share
        for share in plan.models
    )
    return plan.model_copy(update={"stages": stages, "warm_up": warm_up, "models": models})


def _with_trace(stage: Stage, folder: Path) -> Stage:
    if not stage.trace:
        return stage
    name = stage.name or f"trace {Path(stage.trace).name}"
    return stage.model_copy(update={"trace": str(folder / stage.trace), "name": name})


def _missing_files(plan: PlanFile) -> Iterator[Problem]:
    for place, stage in enumerate(plan.stages):
        if stage.trace and not Path(stage.trace).is_file():
            yield Problem(("stages", str(place), "trace"), "wrong", f"there is no file {stage.trace}")
    for place, share in enumerate(plan.models):
        if share.data is not None and share.data.path and not Path(share.data.path).exists():
            yield Problem(("models", str(place), "data", "path"), "wrong", f"there is no file {share.data.path}")
