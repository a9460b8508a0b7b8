"""The step that numbers a release and shows it to Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from plansmith import __version__
from plansmith.config.source_reference import SourceReference
from plansmith.config.spec import ModelSpec
from plansmith.errors import RepositoryError
from plansmith.records.fingerprint import Fingerprint
from plansmith.records.pipeline import Script
from plansmith.records.release import BESIDE_FOLDER, Manifest, Package, PublishedVersion
from plansmith.records.validation import ServedReport
from plansmith.report import REPORT_FILE, facts_of, render
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.provenance.fingerprint import completed, require_not_superseded
from plansmith.steps.provenance.reproduction import reproduction
from plansmith.steps.release.deliver import Deliveries
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.system.digest import digest_of_files
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.control.load_targets import ServerGroup


@dataclass(frozen=True)
class ReleaseArtifacts:
    """What the steps before have made, and what the first of them began with.

    `served` is None without a server, `before` in a dry run; `beside`: by name, the models beside the model;
    `script`: what a script was found to answer, where one answers in their place.
    """

    model: CompiledModel
    before: Fingerprint | None
    beside: Mapping[str, CompiledModel] = field(default_factory=dict)
    script: StepResult[Script] | None = None
    package: StepResult[Package] | None = None
    served: StepResult[ServedReport] | None = None

    @property
    def packaged(self) -> StepResult[Package]:
        """The package, once it is there."""
        assert self.package is not None
        return self.package


def publish(
    stages: StageRunner,
    repository: ModelRepository,
    spec: ModelSpec,
    reference: SourceReference,
    artifacts: ReleaseArtifacts,
    *,
    deliveries: Deliveries,
    relative_to: Path,
) -> tuple[PublishedVersion, Manifest] | None:
    """Make a release of what the steps made, unless the newest one is the same, exchange the view, and deliver it.

    None where it only looks, and the newest one is not the same.

    What is delivered already is found there, so that the same call goes on after what went wrong.

    Args:
        stages: the compile's steps.
        repository: where the release goes.
        spec: what was asked for, with the target's name in full.
        reference: the source as typed.
        artifacts: what the steps before made.
        deliveries: take the release besides.
        relative_to: the folder that paths in the spec start from.

    Raises:
        RepositoryError: another target's repository, a changed interface, a full or unwritable disk; or a destination
            refuses the release, which stands in the repository.
        EnvironmentFault: a server that has to load the release cannot be asked, and nothing was published; or a
            destination cannot be reached.
        ServedCheckError: one does not load it; the release was withdrawn.
    """
    with stages.timed("publish") as clock:
        content = _content(artifacts)
        manifest = _manifest(stages, spec, artifacts)
        if stages.dry:
            found = _published_before(stages, repository, manifest)
            clock.is_missing = found is None
            return found
        servers = ServerGroup(
            spec.load_into, stages.progress, load_seconds=spec.load_seconds, serves=spec.triton.serves
        )
        servers.require_reachable()
        again = reproduction(
            spec, reference, manifest.source, relative_to=relative_to, data=manifest.data, beside=manifest.beside
        )
        require_not_superseded(spec, _noted(repository, manifest.name))
        published = repository.publish(
            manifest,
            content,
            {**again, "build.log": stages.worker_log()},
            allow_interface_change=spec.allow_interface_change,
            force=spec.force,
            waiting=stages.waits_for_publisher,
            described=lambda numbered: {REPORT_FILE: render(facts_of(numbered))},
            servers=servers if spec.load_into else None,
        )
        assert artifacts.before is not None
        basis = completed(artifacts.before, spec, artifacts.model, artifacts.beside)
        note = partial(_note, stages, repository, basis)
        note(published)
        published = deliveries.deliver(published, note)
        deliveries.note(published, _delivered(basis, published))
        clock.cached = published.unchanged and all(one.unchanged for one in published.publications)
        _notice_unserved(stages, spec, published)
        return published, manifest.model_copy(update={"version": published.version})


def _content(artifacts: ReleaseArtifacts) -> dict[str, Path]:
    """The files of the release by their places in it: those of the package, and those that only the release keeps."""
    package = artifacts.packaged
    return {name: package.folder / name for name in package.record.files} | _kept(artifacts)


def _kept(artifacts: ReleaseArtifacts) -> dict[str, Path]:
    """The files that Triton does not read: reference answers, and what shows how the release was made."""
    kept = dict(artifacts.model.kept())
    for name, one in artifacts.beside.items():
        kept |= {f"{BESIDE_FOLDER}/{name}/{place}": path for place, path in one.kept().items()}
    if artifacts.script is not None:
        kept |= {case.file: artifacts.script.folder / case.file for case in artifacts.script.record.cases}
    return kept


def _manifest(stages: StageRunner, spec: ModelSpec, artifacts: ReleaseArtifacts) -> Manifest:
    """The manifest of the release, which has no number yet."""
    package, model = artifacts.packaged, artifacts.model
    files = stages.digester.entries(package.folder, [package.folder / name for name in package.record.files])
    kept = sorted(_kept(artifacts).items())
    return Manifest(
        name=package.record.model,
        version=0,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        plansmith=__version__,
        target=spec.target,
        release_digest=digest_of_files(files),
        spec=spec.model_dump(mode="json"),
        source=model.source.record,
        onnx=model.onnx.record,
        data=model.data.record if model.data else None,
        lowered=model.lowered.record,
        engine=model.engine.record,
        pipeline=model.pipeline.record if model.pipeline else None,
        beside={name: one.released() for name, one in artifacts.beside.items()},
        script=artifacts.script.record if artifacts.script else None,
        package=package.record,
        validation=model.validation.record,
        served=artifacts.served.record if artifacts.served else None,
        files=(*files, *(stages.digester.entry(path, place) for place, path in kept)),
        steps=tuple(stages.records),
    )


def _published_before(
    stages: StageRunner, repository: ModelRepository, manifest: Manifest
) -> tuple[PublishedVersion, Manifest] | None:
    """The newest version, where it is what a dry run would publish."""
    newest = repository.newest(manifest.name)
    if newest is None or not repository.holds(newest, manifest):
        return None
    published = stages.results["publish"] = repository.published(newest, unchanged=True)
    return published, newest


def _notice_unserved(stages: StageRunner, spec: ModelSpec, published: PublishedVersion) -> None:
    """Say that Triton does not serve a version which the version policy of its spec leaves out."""
    if spec.triton.serves(published.version):
        return
    unasked = f"; not loaded into {', '.join(spec.load_into)}" if spec.load_into else ""
    stages.notice(f"Triton does not serve version {published.version}: triton.version_policy names others{unasked}")


def _noted(repository: ModelRepository, model: str) -> Fingerprint | None:
    """What the newest version was made from; None where that cannot be read."""
    try:
        return repository.basis(model)
    except RepositoryError:
        return None


def _note(stages: StageRunner, repository: ModelRepository, basis: Fingerprint, published: PublishedVersion) -> None:
    """Note what a version was made from, and where it was published to so far.

    One that is not noted stands, and a fleet takes it for stale.
    """
    try:
        repository.store_fingerprint(published.name, _delivered(basis, published), stages.waits_for_publisher)
    except OSError as error:
        stages.notice(f"what version {published.version} was made from could not be noted: {error}")


def _delivered(basis: Fingerprint, published: PublishedVersion) -> Fingerprint:
    """What a version was made from, with where it was published to so far."""
    places = basis.destinations[: len(published.publications)]
    stored = {place: publication.digest for place, publication in zip(places, published.publications, strict=True)}
    return basis.model_copy(update={"version": published.version, "destinations": places, "stored": stored})
