"""Page queries: a program that reads one query as JSON on standard input and writes the result to standard output.

Run as `python -m plansmith.triggers.pages.queries <parent>` by `query_process.run_query`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from plansmith.config.spec import folder_of, repository_of
from plansmith.errors import PlansmithError
from plansmith.fleet.plan import plan_fleet
from plansmith.fleet.status import model_statuses, source_of_release
from plansmith.records.model import Record
from plansmith.signing.policy import machine_policy
from plansmith.signing.verification import SignatureStatus
from plansmith.steps.provenance.history import HISTORY, History
from plansmith.stores.diff import Differences, differences, side_of_folder
from plansmith.system.digest import Digester
from plansmith.system.process import dying_with
from plansmith.triggers.pages.query_results import (
    CompileResult,
    FleetModel,
    FleetResult,
    HistoryResult,
    ModelResult,
    VersionResult,
    known_error_detail,
    report_of_compile,
    report_of_version,
)
from plansmith.triton.repository.repository import ModelRepository, Version, versions
from plansmith.triton.repository.signature import local_signer, release_status

ARTIFACTS = "artifacts"
MOST_COMPILES = 30

_NICENESS = 10


def query_fleet(*, specs: Sequence[str]) -> FleetResult:
    """Return the status of each model of some specs and of all others in their repositories, as `plansmith status`."""
    notices: list[str] = []
    planned = list(plan_fleet([Path(spec) for spec in specs], {}, tell=notices.append))
    artifacts = Path(ARTIFACTS).absolute()
    artifacts_of = {(entry.model, entry.target, entry.repository): entry.artifacts for entry in planned}
    models = [
        FleetModel(
            status=status,
            artifacts=artifacts_of.get((status.model, status.target, status.repository)) or str(artifacts),
        )
        for status in model_statuses(planned, [repository_of({})], artifacts)
    ]
    return FleetResult(models=tuple(models), notices=tuple(notices))


def query_model(*, models: Sequence[Mapping[str, Any]]) -> ModelResult:
    """Return the versions and compiles of a model for each target, with the errors of those that cannot be read."""
    return ModelResult(histories=tuple(map(_history, map(FleetModel.model_validate, models))))


def query_differences(*, repository: str, model: str, old: int, new: int) -> Differences:
    """Return the differences between two versions, as `plansmith diff`.

    Raises:
        RepositoryError: one of them is not there, or damaged.
    """
    opened = ModelRepository(Path(repository))
    sides = [side_of_folder(opened.release(model, number), f"{model}@{number}") for number in (old, new)]
    return differences(*sides)


_QUERIES: dict[str, Callable[..., Record]] = {
    "fleet": query_fleet,
    "model": query_model,
    "differences": query_differences,
}


def answer(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a query as JSON values, or its error.

    Args:
        query: `about` names it, and the rest are its arguments.
    """
    arguments = dict(query)
    try:
        return {"result": _QUERIES[arguments.pop("about")](**arguments).model_dump(mode="json")}
    except (PlansmithError, OSError) as error:
        return {"error": known_error_detail(error).model_dump(mode="json")}


def _history(model: FleetModel) -> HistoryResult:
    fields: dict[str, Any] = {"key": model.key}
    try:
        fields["versions"] = tuple(_versions(model))
    except (PlansmithError, OSError) as error:
        fields["versions_error"] = known_error_detail(error)
    try:
        fields |= _compiles(model)
    except OSError as error:
        fields["compiles_error"] = known_error_detail(error)
    return HistoryResult(**fields)


def _versions(model: FleetModel) -> Iterator[VersionResult]:
    """Yield the versions, newest first; digests already computed by compiles come from their memo."""
    memo = Digester(Path(model.artifacts) / "cache" / "digests.sqlite", read_only=True)
    repository = ModelRepository(Path(model.status.repository), memo)
    policy = machine_policy()
    for version in reversed(versions(repository, model.status.model)):
        signature = release_status(repository, model.status.model, version.number, policy, memo) if policy else None
        yield _version(model, repository, version, signature)


def _version(
    model: FleetModel, repository: ModelRepository, version: Version, signature: SignatureStatus | None
) -> VersionResult:
    manifest = repository.readable(model.status.model, version.number)
    return VersionResult(
        number=version.number,
        created=version.made,
        source=source_of_release(manifest) if manifest else None,
        verdict=version.verdict,
        precision=str(manifest.engine.precision) if manifest else None,
        engine=str(manifest.engine.kind) if manifest else None,
        bytes=sum(file.bytes for file in manifest.files) if manifest else None,
        signer=local_signer(repository.release(model.status.model, version.number)),
        is_signed=signature.state == "valid" if signature else None,
        signature_problem=signature.problem if signature else "",
        is_shown=version.shown,
        is_served=version.serves,
        hidden_reason=version.hidden,
        has_report=report_of_version(model, version.number) is not None,
    )


def _compiles(model: FleetModel) -> dict[str, Any]:
    """The last compiles of a model for its target; the history is read from its end, only as far as needed."""
    history = History(Path(model.artifacts) / HISTORY)
    key = (model.status.model, model.status.target)
    results: list[CompileResult] = []
    unreadable = 0
    for number in reversed(history.numbers()):
        run = history.read(number)
        if run is None:
            unreadable += history.file(number).exists()
        elif (run.model, folder_of(run.target)) == key:
            if len(results) == MOST_COMPILES:
                return {"compiles": tuple(results), "unreadable_count": unreadable, "is_truncated": True}
            has_report = report_of_compile(model, number) is not None
            results.append(CompileResult(number=number, record=run, has_report=has_report))
    return {"compiles": tuple(results), "unreadable_count": unreadable}


def main() -> None:
    """Answer one query, and exit if the requesting process ends."""
    if not dying_with(int(sys.argv[1]))():
        return
    with suppress(OSError):
        os.nice(_NICENESS)
    print(json.dumps(answer(json.load(sys.stdin))))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
