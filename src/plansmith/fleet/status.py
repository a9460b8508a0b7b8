"""Fleet status: the newest version of each model, whether it is stale, and the outcome of the last compile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from plansmith.config.spec import folder_of
from plansmith.config.targets import DEFAULT_TARGET
from plansmith.errors import RepositoryError, first_line
from plansmith.fleet.records import PlannedModel, State
from plansmith.formatting import short_path
from plansmith.records.model import Record
from plansmith.records.release import Manifest
from plansmith.steps.provenance.history import HISTORY, History, Outcome, RunRecord
from plansmith.triton.repository.ensembles import repositories_in
from plansmith.triton.repository.repository import ModelRepository

_DIGEST = re.compile(r"[0-9a-f]{40,64}")
_SHORT_LETTERS = 7
_REGISTRY_SCHEME = "mlflow:"

UNKNOWN = "no spec of it was looked at"
_LastRuns = dict[tuple[str, str], "LastRun"]


class ReleaseSource(Record):
    """Source of a released model.

    Attributes:
        address: as a source is typed in a spec, without the revision.
        revision: the version in a registry or the commit of the hub; None of a folder or file.
        random_weights: only its architecture came from there.
        companion_count: how many more models the release has.
    """

    address: str
    revision: str | None
    random_weights: bool
    companion_count: int

    @property
    def label(self) -> str:
        """A short label: `mlflow:models:/ranker/3`, `hf:org/ranker@1a2b3c4`, `timm:resnet18 (random weights)`."""
        more = f" and {self.companion_count} more" if self.companion_count else ""
        return f"{self._pinned}{' (random weights)' if self.random_weights else ''}{more}"

    @property
    def _pinned(self) -> str:
        scheme, _, path = self.address.partition(":")
        if self.revision is None:
            return f"{scheme}:{short_path(Path(path))}"
        if self.address.startswith(_REGISTRY_SCHEME):
            return f"{self.address}/{self.revision}"
        revision = self.revision
        return f"{self.address}@{revision[:_SHORT_LETTERS] if _DIGEST.fullmatch(revision) else revision}"


def source_of_release(manifest: Manifest) -> ReleaseSource:
    """Return the source of a release's model, with the number of companion models."""
    source = manifest.source
    return ReleaseSource(
        address=source.address,
        revision=source.revision,
        random_weights=source.random_weights,
        companion_count=len(manifest.beside),
    )


class Newest(Record):
    """Newest version, whose configuration Triton sees; None for manifest facts if the manifest is damaged."""

    version: int
    made: str | None
    source: ReleaseSource | None
    precision: str | None
    engine: str | None
    verdict: str | None
    is_shown: bool


class LastRun(Record):
    """Last compile of a model; `step` and `message` of a failed one."""

    started: str
    outcome: Outcome
    version: int | None
    seconds: float
    step: str = ""
    error: str = ""
    message: str = ""
    exit_code: int = 0


class ModelStatus(Record):
    """Status of one model, for one target.

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
    """Return the status of the models in plan order, then of repository models without a spec, by name.

    Args:
        planned: the models of specs.
        repositories: folders; one that holds the repositories of several targets stands for all of them.
        artifacts: where compiles of the latter are noted.
        models: these alone, of the latter.
    """
    entries: list[tuple[ModelStatus, Path]] = []
    keys: set[tuple[str, str]] = set()
    for item in planned:
        why = item.why
        stands = ModelStatus(
            model=item.model, target=item.target, repository=item.repository, file=item.file, state=item.state, why=why
        )
        keys.add((item.model, str(Path(item.repository).resolve())))
        entries.append((_with_versions(stands), Path(item.artifacts or artifacts)))
    for repository in _repositories(repositories):
        root = str(repository.root)
        others = [item for item in _without_specs(repository) if (item.model, root) not in keys]
        entries += [(_with_versions(item), artifacts) for item in others if not models or item.model in {"", *models}]
    return list(_with_runs(entries))


def _without_specs(repository: ModelRepository) -> Iterator[ModelStatus]:
    """Yield the models of a repository; a repository damaged as a whole gets an entry without a model name."""
    where = str(repository.root)
    try:
        target = folder_of(repository.target() or DEFAULT_TARGET)
        names = repository.models()
    except (RepositoryError, OSError) as error:
        yield _faulty(ModelStatus(model="", target="", repository=where), error)
        return
    yield from (ModelStatus(model=model, target=target, repository=where) for model in names)


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
    """Return the status of a model whose versions are unreadable; a refused plan already reports it."""
    if stands.state == "refused":
        return stands
    reason = error.message if isinstance(error, RepositoryError) else first_line(error)
    return stands.model_copy(update={"state": "refused", "why": reason})


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


def _with_runs(entries: Sequence[tuple[ModelStatus, Path]]) -> Iterator[ModelStatus]:
    """Return the status with each model's last compile; a history is read from its end, only as far as needed."""
    keys_by_folder: dict[Path, set[tuple[str, str]]] = {}
    for stands, artifacts in entries:
        if stands.model:
            keys_by_folder.setdefault(artifacts, set()).add((stands.model, stands.target))
    runs: dict[Path, _LastRuns] = {}
    unknown: dict[Path, str] = {}
    for artifacts, keys in keys_by_folder.items():
        try:
            runs[artifacts] = _last_runs(artifacts, keys)
        except OSError as error:
            unknown[artifacts] = first_line(error)
    for stands, artifacts in entries:
        update = {
            "last_run": runs.get(artifacts, {}).get((stands.model, stands.target)),
            "runs_unknown": unknown.get(artifacts, ""),
        }
        yield stands.model_copy(update=update) if stands.model else stands


def _last_runs(artifacts: Path, keys: set[tuple[str, str]]) -> _LastRuns:
    runs: _LastRuns = {}
    for run in History(artifacts / HISTORY).newest_first():
        key = (run.model, folder_of(run.target))
        if key in keys and key not in runs:
            runs[key] = _last_run(run)
            if len(runs) == len(keys):
                break
    return runs


def _last_run(run: RunRecord) -> LastRun:
    fields = {"started": run.started, "outcome": run.outcome, "version": run.version, "seconds": run.seconds}
    if run.failure is None:
        return LastRun.model_validate(fields)
    failure = run.failure.model_dump(include={"step", "error", "message", "exit_code"})
    return LastRun.model_validate(fields | failure)
