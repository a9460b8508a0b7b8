"""Verification of published releases.

File integrity, and whether a running Triton still answers like the source model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plansmith.config.targets import load_target
from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, ServedCheckError
from plansmith.fleet.maintenance.locations import Fault, Notes, Places
from plansmith.formatting import format_bytes
from plansmith.records.model import Record
from plansmith.records.release import Manifest
from plansmith.steps.release.check_served import check_published_release, incomparable_reason
from plansmith.stores.store import Store
from plansmith.stores.verify import Verification, verify_repository, verify_store
from plansmith.system.files import make_folder, scratch_folder, scratch_name, staging_folder
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.process import refused_models
from plansmith.triton.server.runtime import find_serving_runtime

Tell = Callable[[str], None]
"""Told what is being done; often, as contents are read."""

Outcome = Literal["right", "wrong", "unasked", "incomparable"]
"""It answers as its model did; it does not load, or answers otherwise; no server here could be asked; or its answers
cannot be compared with what it holds."""


class VersionAnswer(Record):
    """Answer of one version visible to Triton.

    `problem` says why it is not right; `requests` were answered rightly, by `runtime`; `log`: of a server that did not
    do as it should.
    """

    repository: str
    model: str
    version: int
    outcome: Outcome
    problem: str = ""
    requests: int = 0
    runtime: str = ""
    log: str = ""


class Verified(Record):
    """Verification results: places by digest, versions by their answers.

    `faults`: places that could not be looked at; `absent`: places of specs with nothing in them yet.
    """

    places: tuple[Verification, ...]
    answers: tuple[VersionAnswer, ...]
    faults: tuple[Fault, ...]
    absent: tuple[str, ...] = ()

    def error(self) -> PlansmithError | None:
        """Return the error to exit with: damage first, then wrong answers, then unchecked places.

        None if all is well.
        """
        damaged = sorted({_named(item.model, item.version) for place in self.places for item in place.damages})
        if damaged:
            return RepositoryError(
                f"not as it was published: {', '.join(damaged)}",
                remedy="; ".join(dict.fromkeys(place.remedy() for place in self.places if place.damages)),
                step="verify",
            )
        wrong = [item for item in self.answers if item.outcome == "wrong"]
        if wrong:
            return ServedCheckError(
                f"Triton does not answer as it should by {_listed(wrong)}: {wrong[0].problem}",
                remedy=f"go back: plansmith rollback {wrong[0].model} --repository {wrong[0].repository}; or compile it"
                " again with --force",
                step="verify",
                log=Path(wrong[0].log) if wrong[0].log else None,
            )
        if self.faults:
            return self.faults[0].as_error().located(step="verify")
        unasked = [item for item in self.answers if item.outcome == "unasked"]
        if unasked:
            return EnvironmentFault(
                f"no Triton here could be asked about {_listed(unasked)}: {unasked[0].problem}",
                remedy="plansmith serve-env add installs one; or verify where the target's GPU is, or by digest alone",
                step="verify",
            )
        return None


@dataclass(frozen=True)
class VerifyOptions:
    """Verification options.

    Args:
        quick: by sizes and kept digests; no content is read.
        on_server: have a Triton of this machine load each version that is shown, and answer.
        tritonserver: which, relative to the places' folder; that of the spec, or of this machine, where it is empty.
    """

    quick: bool = False
    on_server: bool = True
    tritonserver: str = ""


def verify(places: Places, manner: VerifyOptions, *, model: str | None = None, tell: Tell = lambda _: None) -> Verified:
    """Verify contents against what was published, and check the served answers of intact releases.

    Args:
        places: the repositories, of which the shown versions are asked, and the stores.
        manner: how.
        model: only this one, wherever it is.
        tell: told what is being done.

    Raises:
        RepositoryError: no place has that model.
    """
    notes = Notes([*places.of_specs.faults])
    verifications: list[Verification] = []
    answers: list[VersionAnswer] = []
    server = str(places.relative_to / manner.tritonserver) if manner.tritonserver else ""
    for repository in notes.opened(places.open_repositories()):
        with notes.noting(str(repository.root)):
            if model is None or model in repository.models():
                checked = _reading(repository, tell)
                verifications.append(verify_repository(repository, model, quick=manner.quick, checked=checked))
                if manner.on_server:
                    damaged = {(damage.model, damage.version) for damage in verifications[-1].damages}
                    answers += notes.opened(_ask_shown(repository, model, damaged, server, tell))
    for store in notes.opened(places.open_stores()):
        with notes.noting(store.place):
            if model is None or model in store.models():
                verifications.append(verify_store(store, model, quick=manner.quick, checked=_reading(store, tell)))
    if model is not None and not verifications and not notes.faults:
        raise RepositoryError(
            f"there is no model {model!r} in any of them", remedy="list the models: plansmith versions", step="verify"
        )
    return Verified(
        places=tuple(verifications), answers=tuple(answers), faults=tuple(notes.faults), absent=tuple(notes.absent)
    )


def _reading(place: ModelRepository | Store, tell: Tell) -> Callable[[int, int], None]:
    name = place.place if isinstance(place, Store) else str(place.root)
    return lambda read, total: tell(f"{name}: {format_bytes(read)} of {format_bytes(total)} read")


def _ask_shown(
    repository: ModelRepository, model: str | None, damaged: set[tuple[str, int | None]], tritonserver: str, tell: Tell
) -> Iterator[VersionAnswer | Fault]:
    """Run the served check for each intact version that Triton sees, in turn; or return why one cannot be checked."""
    shown = [
        (name, number)
        for name in (repository.models() if model is None else [model])
        for number in repository.views(name).shown()
        if (name, number) not in damaged
    ]
    for place, (name, number) in enumerate(shown, 1):
        tell(f"asking Triton about {_named(name, number)} ({place} of {len(shown)})")
        manifest = repository.readable(name, number)
        if manifest is not None:  # else it was taken away meanwhile
            notes = Notes()
            with notes.noting(str(repository.release(name, number))):
                yield _ask(repository, manifest, tritonserver)
            yield from notes.faults


def _ask(repository: ModelRepository, manifest: Manifest, tritonserver: str) -> VersionAnswer:
    release = repository.release(manifest.name, manifest.version)
    answered = VersionAnswer(
        repository=str(repository.root), model=manifest.name, version=manifest.version, outcome="incomparable"
    )
    reason = incomparable_reason(manifest, release)
    if reason is not None:
        return answered.model_copy(update={"problem": reason})
    try:
        named = tritonserver or _server_of(manifest)
        target, kind = load_target(manifest.target), manifest.engine.kind
        runtime = find_serving_runtime(
            named, target, kind, dali=manifest.package.has_dali, parts=bool(manifest.package.members)
        )
        with _log() as log, _scratch(repository) as scratch:
            report = check_published_release(manifest, release, runtime, scratch=Path(scratch) / "repository", log=log)
    except ServedCheckError as error:
        problem = {"problem": _failure_reason(error, manifest.name), "log": str(error.log or "")}
        return answered.model_copy(update={"outcome": "wrong", **problem})
    except PlansmithError as error:
        return answered.model_copy(update={"outcome": "unasked", "problem": error.message})
    return answered.model_copy(
        update={"outcome": "right", "requests": report.requests, "runtime": report.backend_runtime}
    )


def _server_of(manifest: Manifest) -> str:
    """Return the server that a release was checked with; empty, for this machine's own, if it no longer exists.

    A release that was made elsewhere, or by a path that started from a folder which nobody has noted, names none here.
    """
    named = Path(str(manifest.spec.get("tritonserver") or ""))
    return str(named) if named.is_absolute() and named.exists() else ""


def _failure_reason(error: ServedCheckError, model: str) -> str:
    """Return Triton's reason for not loading a model, without the scratch paths of this check."""
    refused = refused_models(error.log).get(model) if error.log is not None and error.log.is_file() else None
    return f"Triton does not load it: {refused}" if refused else error.message


@contextmanager
def _log() -> Iterator[Path]:
    """Yield a log file for server output, which is kept if the block fails."""
    descriptor, name = tempfile.mkstemp(prefix=scratch_name("verify-"), suffix=".log")
    os.close(descriptor)
    yield Path(name)
    Path(name).unlink()


def _scratch(repository: ModelRepository) -> AbstractContextManager[Path | str]:
    """Yield a scratch folder on the releases' file system, if writable, so that nothing is copied."""
    if not os.access(repository.store, os.W_OK):
        return scratch_folder("verify")
    make_folder(repository.staging)
    return staging_folder(repository.staging)


def _named(model: str, version: int | None) -> str:
    return model if version is None else f"{model}@{version}"


def _listed(answers: list[VersionAnswer]) -> str:
    return ", ".join(_named(answer.model, answer.version) for answer in answers)
