"""A load test as a YAML file: the stages or phases, and which models get which requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from plansmith.config.data import DataSpec
from plansmith.config.spec import Problem, problem_of, refusal
from plansmith.config.yaml_source import read_text
from plansmith.loadtest.plan.stages import LoadPlan, Positive, Stage
from plansmith.records.fields import Count, PositiveCount
from plansmith.records.model import Record
from plansmith.system.urls import Protocol
from plansmith.triton.client import Encoding

_FORM = "a plan of a load test is a mapping with `stages` or `phases`"
_MIN_STEP_SECONDS = 10.0
"""Users that come faster than one in this time come together: a shorter stage would have too few requests."""


class Phase(Record):
    """Users of a closed loop whose number grows evenly.

    The fields are those of SageMaker's load tests:
    docs.aws.amazon.com/sagemaker/latest/APIReference/API_Phase.html.
    """

    InitialNumberOfUsers: Annotated[Count, Field(ge=1, le=1_000_000)] = Field(description="Users at its beginning.")
    SpawnRate: Annotated[Count, Field(ge=0, le=1_000_000)] = Field(default=0, description="New users per minute.")
    DurationInSeconds: Annotated[Count, Field(ge=1, le=7 * 86_400)] = Field(description="How long it takes.")

    def stages(self, number: int) -> Iterator[Stage]:
        """The phase as stages of constant users, which are at each time those that have started by then."""
        seconds = float(self.DurationInSeconds)
        step = max(60 / self.SpawnRate, _MIN_STEP_SECONDS) if self.SpawnRate else seconds
        starts = [place * step for place in range(max(1, math.floor(seconds / step)))]
        for start, end in zip(starts, [*starts[1:], seconds], strict=True):
            users = self.InitialNumberOfUsers + math.floor(start * self.SpawnRate / 60 + 1e-9)
            label = f"phase {number}: {users} user{'' if users == 1 else 's'}"
            yield Stage(name=label, users=users, seconds=round(end - start, 3))


class ModelShare(Record):
    """One model of the mix."""

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
        """Without the version."""
        return self.model.partition("@")[0]

    @property
    def version(self) -> str:
        """Empty where none is named."""
        return self.model.partition("@")[2]


def repeated_model(models: Sequence[ModelShare]) -> str:
    """The first model that the mix has twice without a different version each; empty where there is none."""
    seen: dict[str, list[str]] = {}
    for share in models:
        versions = seen.setdefault(share.name, [])
        if versions and (share.version in versions or "" in {share.version, *versions}):
            return share.name
        versions.append(share.version)
    return ""


class PlanFile(LoadPlan):
    """The file of a load test."""

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
        """The stages and the settings of all of them."""
        fields = {name: getattr(self, name) for name in LoadPlan.model_fields}
        return LoadPlan(**fields | {"stages": self.stages or stages_of_phases(self.phases)})


def stages_of_phases(phases: Sequence[Phase]) -> tuple[Stage, ...]:
    """Phases one after the other as stages."""
    return tuple(stage for number, phase in enumerate(phases, 1) for stage in phase.stages(number))


def read_plan(path: Path) -> PlanFile:
    """Read the file of a load test; its paths are absolute in the result.

    Raises:
        UsageError: it cannot be read, or lists every problem with its line.
    """
    text = read_text(path, form=_FORM, examples="plansmith loadtest --help")
    problems = [*text.problems, *(text.placed(problem) for problem in _value_problems(text.values))]
    if not problems:
        plan = _with_absolute_paths(PlanFile.model_validate(text.values), path.absolute().parent)
        problems = [text.placed(problem) for problem in _missing_files(plan)]
    if problems:
        raise refusal(problems, what="the plan of the load test")
    return plan


def _value_problems(values: dict[str, Any]) -> list[Problem]:
    try:
        PlanFile.model_validate(values)
    except ValidationError as invalid:
        return [problem_of(error, values) for error in invalid.errors()]
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
