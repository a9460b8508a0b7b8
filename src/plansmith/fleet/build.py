"""Fleet builds: builds the stale models one after another; a failure does not stop the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from plansmith.config.spec import ModelSpec
from plansmith.errors import UsageError
from plansmith.fleet.members import Member, members_in
from plansmith.fleet.records import Ended, FleetSummary, ModelOutcome, PlannedModel, failure_of
from plansmith.records.release import PublishedVersion
from plansmith.steps.provenance.history import Failure

CompileOne = Callable[[ModelSpec, Path], PublishedVersion]
"""Compiles a spec, whose relative paths start from a folder."""


def build_fleet(
    planned: Iterable[PlannedModel],
    compile_one: CompileOne,
    overrides: Mapping[str, Any],
    *,
    begins: Callable[[PlannedModel], None] = lambda _: None,
    ended: Callable[[ModelOutcome], None] = lambda _: None,
) -> FleetSummary:
    """Build the stale models; refused ones count as failed.

    Args:
        planned: what `plan_fleet` gave, or a part of it.
        compile_one: compiles one model; what it raises is that model's failure, a bug included.
        overrides: as the plan was made with.
        begins: told of a model before it is built.
        ended: told what came of each model, also of those with nothing to do.

    Raises:
        KeyboardInterrupt: while a model was built; `ended` is told of that one before.
    """
    started = time.monotonic()
    outcomes: list[ModelOutcome] = []
    for model in planned:
        if model.state != "stale":
            outcomes.append(outcome_without_work(model))
        else:
            begins(model)
            try:
                outcomes.append(_build(model, compile_one, overrides))
            except KeyboardInterrupt as interrupt:
                ended(outcome_of(model, "interrupted", failure=failure_of(interrupt)))
                raise
        ended(outcomes[-1])
    return FleetSummary(outcomes=tuple(outcomes), seconds=round(time.monotonic() - started, 3))


def outcome_without_work(planned: PlannedModel) -> ModelOutcome:
    """Return the outcome of a model that is fresh or was refused."""
    return outcome_of(planned, "failed" if planned.state == "refused" else "fresh", failure=planned.failure)


def outcome_unbuilt(planned: PlannedModel) -> ModelOutcome:
    """Return the outcome of a model that was not built because the fleet run was interrupted."""
    return outcome_of(planned, "interrupted") if planned.state == "stale" else outcome_without_work(planned)


def outcome_of(
    planned: PlannedModel,
    ended: Ended,
    *,
    version: int | None = None,
    failure: Failure | None = None,
    seconds: float = 0,
    run: str = "",
) -> ModelOutcome:
    """Return the outcome of a planned model; the version is the previous one if there is no new one."""
    return ModelOutcome(
        model=planned.model,
        target=planned.target,
        file=planned.file,
        repository=planned.repository,
        ended=ended,
        reasons=planned.reasons,
        version=planned.version if version is None else version,
        failure=failure,
        seconds=round(seconds, 3),
        run=run,
    )


def spec_of(planned: PlannedModel, overrides: Mapping[str, Any]) -> tuple[ModelSpec, Path]:
    """Reread the spec of a planned model, and return it with the base folder of its relative paths.

    Raises:
        UsageError: the file is gone, is wrong by now, or has no such model any more.
    """
    file = Path(planned.file)
    members = []
    for member in members_in(file, overrides):
        if not isinstance(member, Member):
            raise member.error
        is_named = (member.name, member.target) == (planned.model, planned.target)
        if is_named and planned.repository in {"", str(member.repository)}:
            return _as_planned(member.spec, planned), file.absolute().parent
        where = f" in {member.repository}" if is_named else ""
        members.append(f"{member.name} for {member.target}{where}")
    raise UsageError(
        f"{file} has no model {planned.model} for {planned.target} any more",
        remedy=f"plan again: it has {', '.join(members)}",
    )


def _as_planned(spec: ModelSpec, planned: PlannedModel) -> ModelSpec:
    """Return the spec as planned; a forced model is rebuilt although nothing changed.

    The source that an event set counts as long as the spec names the one that it replaces.
    """
    update: dict[str, Any] = {}
    if any(reason.cause == "forced" for reason in planned.reasons):
        update["force"] = True
    if planned.source_override is not None and planned.source_override.replaces == spec.source:
        update |= {"source": planned.source, "source_override": planned.source_override, "name": planned.model}
    return spec.model_copy(update=update)


def _build(planned: PlannedModel, compile_one: CompileOne, overrides: Mapping[str, Any]) -> ModelOutcome:
    started = time.monotonic()
    try:
        published = compile_one(*spec_of(planned, overrides))
    except Exception as error:  # noqa: BLE001 - a bug in one model stops the others as little as anything else
        return outcome_of(planned, "failed", failure=failure_of(error), seconds=time.monotonic() - started)
    ended: Ended = "unchanged" if published.unchanged else "published"
    return outcome_of(planned, ended, version=published.version, seconds=time.monotonic() - started)
