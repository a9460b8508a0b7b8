"""Service configuration: `configs/service.yaml` as one pydantic class; reports every problem at once, with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from plansmith.config.service_triggers import TriggersConfig
from plansmith.config.spec import Problem, folder_of, problems_of, refusal
from plansmith.config.targets import is_target_file, load_target
from plansmith.config.yaml_source import SpecText, read_text
from plansmith.errors import EngineError
from plansmith.records.fields import Confidential, Count, Switch
from plansmith.records.model import Record

ScheduledFlow = Literal["compile-fleet", "refresh", "verify", "collect", "deploy-endpoints"]
"""The flows that a service runs as a whole; `compile-model` runs for one model at a time, on every pool."""

DEPLOY_ENDPOINTS: ScheduledFlow = "deploy-endpoints"
"""Runs where the service has endpoints."""

_PUBLISHING: tuple[ScheduledFlow, ...] = ("compile-fleet", "refresh")

SERVED = "served"
"""Stands for a pool where `plansmith flows serve` runs the flows itself."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BLOCK = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")
_MISSED_HEARTBEATS = 2

CronCheck = Callable[[str], str | None]
"""Says what is wrong with the text of a schedule; None where it is one."""


def _check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("a name has at most 100 of A-Z a-z 0-9 . _ - and starts with a letter or digit")
    return value


def _check_cron(value: str, info: ValidationInfo) -> str:
    wrong = info.context["cron"](value) if info.context else None
    if wrong:
        raise ValueError(wrong)
    return value


def _check_timezone(value: str) -> str:
    if value not in available_timezones():
        raise ValueError("is no time zone of the IANA's list, such as Europe/Berlin or UTC")
    return value


def _check_block(value: str) -> str:
    if not _BLOCK.fullmatch(value):
        raise ValueError("must be a block of Prefect as TYPE/NAME, such as slack-webhook/on-call")
    return value


def _check_folder(value: str) -> str:
    if value.startswith("~"):
        raise ValueError("begins with ~, which is another folder for every user: write it out")
    return value


def _check_absolute(value: str) -> str:
    if value and not PurePosixPath(value).is_absolute():
        raise ValueError("must begin with /: it is a folder on the machines of the pool, not beside this file")
    return value


Name = Annotated[str, AfterValidator(_check_name)]
Block = Annotated[str, AfterValidator(_check_block)]
Folder = Annotated[str, AfterValidator(_check_folder)]


class Schedule(Record):
    """Schedule of a flow."""

    cron: Annotated[str, AfterValidator(_check_cron)] = Field(description="Five fields: minute hour day month weekday.")
    timezone: Annotated[str, AfterValidator(_check_timezone)] = Field(
        default="UTC", description="Whose clock the fields are of, by the IANA's name."
    )
    parameters: Annotated[dict[str, Any], Confidential()] = Field(
        default_factory=dict, description="Parameters of these runs alone, over those of the flow."
    )


class Pool(Record):
    """Work pool: its machines, and the targets that are built on them."""

    type: Literal["process", "docker", "kubernetes"] = Field(
        default="process", description="What starts a run: Prefect's name of the pool's type."
    )
    create: Switch = Field(default=False, description="Make the pool when it is not there, from configs/work_pools.")
    targets: tuple[str, ...] = Field(
        default=(),
        description="Targets whose models are built here; those that no pool names are built in the first pool.",
    )
    directory: Annotated[Folder, AfterValidator(_check_absolute)] = Field(
        default="",
        description="Where runs work on the machines of this pool, from the root; the service's directory when left"
        " out.",
    )
    env: Annotated[dict[str, str], Confidential()] = Field(
        default_factory=dict, description="Environment variables of the runs; no secrets."
    )
    job_variables: Annotated[dict[str, Any], Confidential()] = Field(
        default_factory=dict, description="Values for the variables of the pool's job template, such as image."
    )


class FlowSettings(Record):
    """Settings of one flow."""

    pool: str = Field(default="", description="Where it runs; in the first pool when left out.")
    parameters: Annotated[dict[str, Any], Confidential()] = Field(
        default_factory=dict, description="Parameters of the flow."
    )
    schedules: dict[Name, Schedule] = Field(default_factory=dict, description="When it runs by itself, by name.")
    after_publication: Switch = Field(
        default=False, description="Run it whenever a run of the service has published a version."
    )


class Notifications(Record):
    """Notification blocks on the Prefect server, which hold the addresses and secrets."""

    failure: tuple[Block, ...] = Field(default=(), description="When a run failed or crashed.")
    publication: tuple[Block, ...] = Field(default=(), description="When a version was published.")


class ServiceConfig(Record):
    """Prefect service of plansmith."""

    name: Name = Field(default="plansmith", description="Tells it from other services of the same Prefect server.")
    directory: Folder = Field(
        default="", description="Where runs work: what is relative starts from there. Relative to this file itself."
    )
    specs: tuple[Folder, ...] = Field(
        min_length=1, description="Spec files and folders of them that fleets are made of, relative to the directory."
    )
    endpoints: tuple[Folder, ...] = Field(
        default=(),
        description="Files of SageMaker endpoints and folders of them, relative to the directory, which"
        " deploy-endpoints keeps as they say.",
    )
    pools: dict[Name, Pool] = Field(min_length=1, description="Work pools by name.")
    flows: dict[ScheduledFlow, FlowSettings] = Field(
        default_factory=dict, description="What differs for a flow; those that are left out run when they are asked to."
    )
    heartbeat_seconds: Annotated[Count, Field(ge=30)] = Field(
        default=30, description="How often a run says that it lives; Prefect takes 30 or more."
    )
    crashed_after_seconds: Count = Field(
        default=900,
        description="How long a run may say nothing before it counts as crashed. Longer than the 600 s for which runs"
        " wait for a server that is away: they say nothing then, and live.",
    )
    begun_after_seconds: Count = Field(
        default=900,
        description="How long a run that a worker took up may take to begin, such as to fetch its image, before it"
        " counts as crashed.",
    )
    notifications: Notifications = Notifications()
    triggers: TriggersConfig | None = Field(
        default=None, description="Which model registries are heard, and what their events build."
    )

    def flow(self, name: ScheduledFlow) -> FlowSettings:
        """Return the settings of a flow, with its work pool."""
        settings = self.flows.get(name, FlowSettings())
        return settings if settings.pool else settings.model_copy(update={"pool": next(iter(self.pools))})

    @property
    def pool_of_target(self) -> dict[str, str]:
        """Map targets, under the names of plans, to work pools; the first, under "", builds for all others."""
        named = {folder_of(target): name for name, pool in self.pools.items() for target in pool.targets}
        return {**named, "": next(iter(self.pools))}


class FlowSchedule(Schedule):
    """Schedule with a stable name that survives changes."""

    name: str


class FlowDeployment(Record):
    """Deployment: a flow with its work pool, schedules and parameters.

    `flow`, `name`: of the flow, and of the deployment in it. `entrypoint`: the flow's module path. `pool`: empty where
    the process that made the deployment runs it itself. `pull_steps`: what a run does before it imports the flow.
    """

    flow: str
    name: str
    entrypoint: str
    description: str
    pool: str
    parameters: dict[str, Any]
    schedules: tuple[FlowSchedule, ...]
    tags: tuple[str, ...]
    job_variables: dict[str, Any] = Field(default_factory=dict)
    pull_steps: tuple[dict[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The name of the deployment in Prefect."""
        return f"{self.flow}/{self.name}"


@dataclass(frozen=True)
class ServiceFile:
    """Service with the file that it was read from.

    Args:
        config: with absolute directories.
        text: of the file, for the lines of what is wrong.
    """

    config: ServiceConfig
    text: SpecText

    def require(self, problems: Iterator[Problem]) -> None:
        """Require that the file has no further problems.

        Raises:
            UsageError: names every problem with its line.
        """
        faults = [self.text.placed(problem) for problem in problems]
        if faults:
            raise _refusal(faults)


def read_service(path: Path, *, cron: CronCheck) -> ServiceFile:
    """Read a service file.

    Args:
        path: of the YAML file; directories in it are relative to its folder.
        cron: says what is wrong with the text of a schedule.

    Raises:
        UsageError: the file cannot be read, or lists every problem with its line.
    """
    form = "the file of a service is a mapping with `specs` and `pools`"
    text = read_text(path, form=form, examples="configs/service.yaml")
    faults = [*text.problems, *(text.placed(problem) for problem in _problems(text.values, cron))]
    if faults:
        raise _refusal(faults)
    config = ServiceConfig.model_validate(text.values, context={"cron": cron})
    directory = str((path.absolute().parent / config.directory).resolve())
    file = ServiceFile(config.model_copy(update={"directory": directory}), text)
    file.require(_contradictions(config))
    return file


def _problems(values: Mapping[str, Any], cron: CronCheck) -> list[Problem]:
    try:
        ServiceConfig.model_validate(values, context={"cron": cron})
    except ValidationError as invalid:
        return problems_of(invalid, values, ServiceConfig)
    return []


def _contradictions(config: ServiceConfig) -> Iterator[Problem]:
    """Yield contradictions between values that are each valid by themselves."""
    yield from _flow_contradictions(config)
    builders: dict[str, str] = {}
    folder = Path(config.directory)
    for name, pool in config.pools.items():
        if name == SERVED:
            message = f"'pools.{SERVED}': stands for `plansmith flows serve`; name the pool otherwise"
            yield Problem(("pools", name), "wrong", message)
        for number, target in enumerate(pool.targets):
            place, called = ("pools", name, "targets", str(number)), folder_of(target)
            if builders.setdefault(called, name) != name:
                message = f"'pools.{name}.targets': {called} is built in the pool {builders[called]} already"
                yield Problem(place, "wrong", message)
            elif unknown := _target_problem(target, folder):
                yield Problem(place, "wrong", f"'pools.{name}.targets': {unknown}")
    if config.triggers is not None:
        for number, rule in enumerate(config.triggers.rules):
            if rule.registry not in config.triggers.registries:
                keys, registry_names = (
                    ("triggers", "rules", str(number), "registry"),
                    ", ".join(config.triggers.registries),
                )
                message = f"{'.'.join(keys)!r}: there is no registry {rule.registry!r} here, but {registry_names}"
                yield Problem(keys, "wrong", message)
    least = _MISSED_HEARTBEATS * config.heartbeat_seconds
    if config.crashed_after_seconds < least:
        message = f"'crashed_after_seconds': must be {least} or more, {_MISSED_HEARTBEATS} times heartbeat_seconds"
        yield Problem(("crashed_after_seconds",), "wrong", message)


def _flow_contradictions(config: ServiceConfig) -> Iterator[Problem]:
    names = ", ".join(config.pools)
    for flow, settings in config.flows.items():
        if settings.pool and settings.pool not in config.pools:
            message = f"'flows.{flow}.pool': there is no pool {settings.pool!r} here, but {names}"
            yield Problem(("flows", flow, "pool"), "wrong", message)
        if settings.after_publication and flow in _PUBLISHING:
            message = f"'flows.{flow}.after_publication': publishes versions itself, and would not end"
            yield Problem(("flows", flow, "after_publication"), "wrong", message)
    if DEPLOY_ENDPOINTS in config.flows and not config.endpoints:
        message = f"'flows.{DEPLOY_ENDPOINTS}': there are no endpoints: name their files, endpoints: [FOLDER]"
        yield Problem(("flows", DEPLOY_ENDPOINTS), "wrong", message)


def _target_problem(target: str, folder: Path) -> str | None:
    """Return why a target is invalid; a target file on other machines can only be checked there."""
    if is_target_file(target) and not folder.is_dir():
        return None
    try:
        load_target(str(folder / target) if is_target_file(target) else target)
    except EngineError as error:
        return f"{error.message} ({error.remedy})"
    return None


def _refusal(problems: list[Problem]) -> Exception:
    return refusal(problems, subject="the file of the service")
