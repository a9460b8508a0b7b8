"""How models stand: the newest version of each, whether it is stale, and what came of the last compile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from plansmith.config.multi_target import folder_of
from plansmith.config.target.targets import DEFAULT_TARGET
from plansmith.errors import RepositoryError, first_line
from plansmith.fleet.records import PlannedModel, State
from plansmith.fleet.release_source import ReleaseSource, source_of_release
from plansmith.records.model import Record
from plansmith.steps.provenance.history import HISTORY, History, Outcome, RunRecord
from plansmith.triton.repository.nesting import repositories_in
from plansmith.triton.repository.repository import ModelRepository

UNKNOWN = "no spec of it was looked at"

_LastRuns = dict[tuple[str, str], "LastRun"]


class Newest(Record):
    """The version whose configuration Triton is shown; what its manifest says is None where that is damaged."""

    version: int
    made: str | None
    source: ReleaseSource | None
    precision: str | None
    engine: str | None
    verdict: str | None
    is_shown: bool


class LastRun(Record):
    """The last compile of a model; `step` and `message` of one that failed."""

    started: str
    outcome: Outcome
    version: int | None
    seconds: float
    step: str = ""
    error: str = ""
    message: str = ""
    exit_code: int = 0


class ModelStatus(Record):
    """How one model stands, for one target.

    `file`: its spec, empty where none was looked at, and the state is "unknown" then; "refused": its versions, or for
    want of a name the whole repository, cannot be looked at; `why`: in one line; `versions`: all that there are,
    ascending; `runs_unknown`: why its last compile cannot be told, empty where the history was read.
    """

    model: str
    target: str
    repository: str
    file: str = ""
    state: State | Literal["unknown"] = "unknown"
    why: str = UNKNOWN
    versions: tuple[int, ...] = ()
    newest: Newest | None = None
    last_run: LastRun | None = None
    runs_unknown: str = ""


def model_statuses(
    planned: Iterable[PlannedModel], repositories: Sequence[Path], artifacts: Path, *, models: Sequence[str] = ()
) -> list[ModelStatus]:
    """How the models of a plan stand, in its order, and then those of repositories that no spec is of, by name.

    Args:
        planned: the models of specs.
        repositories: folders; one that holds the repositories of several targets stands for all of them.
        artifacts: where compiles of the latter are noted.
        models: these alone, of the latter.
    """
    found: list[tuple[ModelStatus, Path]] = []
    seen: set[tuple[str, str]] = set()
    for one in planned:
        why = one.why
        stands = ModelStatus(
            model=one.model, target=one.target, repository=one.repository, file=one.file, state=one.state, why=why
        )
        seen.add((one.model, str(Path(one.repository).resolve())))
        found.append((_with_versions(stands), Path(one.artifacts or artifacts)))
    for repository in _repositories(repositories):
        root = str(repository.root)
        others = [one for one in _without_specs(repository) if (one.model, root) not in seen]
        found += [(_with_versions(one), artifacts) for one in others if not models or one.model in {"", *models}]
    return list(_with_runs(found))


def _without_specs(repository: ModelRepository) -> Iterator[ModelStatus]:
    """The models of a repository; one that is damaged as a whole stands for itself, under no model's name."""
    where = str(repository.root)
    try:
        target = folder_of(repository.target() or DEFAULT_TARGET)
        found = repository.models()
    except (RepositoryError, OSError) as error:
        yield _faulty(ModelStatus(model="", target="", repository=where), error)
        return
    yield from (ModelStatus(model=model, target=target, repository=where) for model in found)


def _repositories(folders: Sequence[Path]) -> Iterator[ModelRepository]:
    for folder in folders:
        yield from map(ModelRepository, repositories_in(folder) or [folder])


def _with_versions(stands: ModelStatus) -> ModelStatus:
    if not stands.model:
        return stands
    try:
        return _looked_at(stands)
    except (RepositoryError, OSError) as error:
        return _faulty(stands, error)


def _faulty(stands: ModelStatus, error: RepositoryError | OSError) -> ModelStatus:
    """Whose versions cannot be looked at; a plan that was refused says so already."""
    if stands.state == "refused":
        return stands
    words = error.message if isinstance(error, RepositoryError) else first_line(error)
    return stands.model_copy(update={"state": "refused", "why": words})


def _looked_at(stands: ModelStatus) -> ModelStatus:
    repository = ModelRepository(Path(stands.repository))
    number = repository.leading(stands.model)
    versions = tuple(repository.versions(stands.model))
    if number is None:
        return stands.model_copy(update={"versions": versions})
    manifest = repository.readable(stands.model, number)
    newest = Newest(
        version=number,
        made=manifest.created if manifest else None,
        source=source_of_release(manifest) if manifest else None,
        precision=str(manifest.engine.precision) if manifest else None,
        engine=str(manifest.engine.kind) if manifest else None,
        verdict=manifest.validation.verdict if manifest else None,
        is_shown=number in repository.views(stands.model).shown(),
    )
    return stands.model_copy(update={"versions": versions, "newest": newest})


def _with_runs(found: Sequence[tuple[ModelStatus, Path]]) -> Iterator[ModelStatus]:
    """The same with the last compile of each; a history is read from its end, and no further than it takes."""
    wanted: dict[Path, set[tuple[str, str]]] = {}
    for stands, artifacts in found:
        if stands.model:
            wanted.setdefault(artifacts, set()).add((stands.model, stands.target))
    runs: dict[Path, _LastRuns] = {}
    unknown: dict[Path, str] = {}
    for artifacts, keys in wanted.items():
        try:
            runs[artifacts] = _last_runs(artifacts, keys)
        except OSError as error:
            unknown[artifacts] = first_line(error)
    for stands, artifacts in found:
        update = {
            "last_run": runs.get(artifacts, {}).get((stands.model, stands.target)),
            "runs_unknown": unknown.get(artifacts, ""),
        }
        yield stands.model_copy(update=update) if stands.model else stands


def _last_runs(artifacts: Path, wanted: set[tuple[str, str]]) -> _LastRuns:
    found: _LastRuns = {}
    for run in History(artifacts / HISTORY).newest_first():
        key = (run.model, folder_of(run.target))
        if key in wanted and key not in found:
            found[key] = _last_run(run)
            if len(found) == len(wanted):
                break
    return found


def _last_run(run: RunRecord) -> LastRun:
    told = {"started": run.started, "outcome": run.outcome, "version": run.version, "seconds": run.seconds}
    if run.failure is None:
        return LastRun.model_validate(told)
    failure = run.failure.model_dump(include={"step", "error", "message", "exit_code"})
    return LastRun.model_validate(told | failure)
