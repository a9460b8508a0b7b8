"""Publish step: assigns the version number and makes the release visible to Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith import __version__
from plansmith.attestations.slsa import attestations_of, builder_id
from plansmith.config.source_reference import SourceReference
from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError, RepositoryError
from plansmith.records.destination import Publication
from plansmith.records.pipeline import Script
from plansmith.records.release import BESIDE_FOLDER, Fingerprint, Manifest, Package, PublishedVersion
from plansmith.records.validation import ServedReport
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.provenance.fingerprint import completed, distributions_of, require_not_superseded
from plansmith.steps.provenance.reproduction import reproduction
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.system.digest import digest_of_files
from plansmith.triton.repository.release import narrowings
from plansmith.triton.repository.repository import ModelRepository

if TYPE_CHECKING:
    from plansmith.stores.publication import Delivery, Outgoing, Terms
    from plansmith.triton.server.live import ServerGroup


class Deliveries:
    """Publish destinations of a spec.

    Args:
        spec: names them.
        relative_to: the folder that relative ones start from.
        repository: holds the releases.
        stages: the compile's steps.

    Raises:
        RepositoryError: a destination overlaps the repository, or the folder that compiles work in.
    """

    def __init__(self, spec: ModelSpec, *, relative_to: Path, repository: ModelRepository, stages: StageRunner) -> None:
        apart = (repository.root, repository.store, Path(spec.artifacts).absolute())
        self._spec = spec
        self._repository = repository
        self._stages = stages
        self._deliveries: list[Delivery] = []
        if spec.publish:
            from plansmith.stores.publication import Delivery

            self._deliveries = [Delivery(place, relative_to=relative_to, apart=apart) for place in spec.publish]

    @property
    def _terms(self) -> Terms:
        from plansmith.stores.publication import Terms

        return Terms(allow_interface_change=self._spec.allow_interface_change, force=self._spec.force)

    @property
    def places(self) -> list[str]:
        """The destinations of releases, formatted for users."""
        return [delivery.place for delivery in self._deliveries]

    def require_open(self) -> None:
        """Require that each destination is reachable and accepts releases for this target; writes nothing.

        Raises:
            PlansmithError: of the first that cannot, or does not.
        """
        for delivery in self._deliveries:
            delivery.require_ours(self._spec.target)

    def plan(self) -> tuple[Publication, ...]:
        """Plan the publication of the release that the compile found; nothing if it is not built yet.

        Raises:
            PlansmithError: a destination cannot be asked, or refuses it.
        """
        self.require_open()
        published = self._stages.results.get("publish")
        if not isinstance(published, PublishedVersion):
            return ()
        release = self._outgoing(published)
        return tuple(delivery.plan(release, self._terms) for delivery in self._deliveries)

    def deliver(
        self, published: PublishedVersion, report: Callable[[PublishedVersion], None] = lambda _: None
    ) -> PublishedVersion:
        """Publish a release to each destination in turn; existing copies are reused.

        Args:
            published: the release.
            report: of it with its publications so far, after each.

        Raises:
            PlansmithError: of the first that fails. The release stands, and the same compile goes on there.
        """
        self._stages.results["publish"] = published
        for delivery in self._deliveries:
            publication = self._delivered(published, delivery)
            published = published.model_copy(update={"publications": (*published.publications, publication)})
            self._stages.results["publish"] = published
            report(published)
        return published

    def note(self, published: PublishedVersion, basis: Fingerprint) -> None:
        """Record in each destination what the release was made from.

        One that cannot be written is told: the release stands there, and who knows it only from there builds it again.
        """
        for delivery, publication in zip(self._deliveries, published.publications, strict=True):
            try:
                delivery.note(publication.model, publication.digest, basis)
            except (PlansmithError, OSError) as error:
                reason = error.message if isinstance(error, PlansmithError) else str(error)
                text = (
                    f"what version {publication.version} of {publication.model} was made"
                    f" from could not be noted in {publication.place}"
                )
                self._stages.notice(f"{text}: {reason}")

    def _delivered(self, published: PublishedVersion, delivery: Delivery) -> Publication:
        try:
            publication = delivery.publish(self._outgoing(published), self._terms, self._stages.progress)
        except PlansmithError as error:
            stands = f"version {published.version} of {published.name} stands in {published.repository}"
            error.message = f"{error.message}\n{stands}, and was not published to {delivery.place}"
            error.remedy = f"{error.remedy}; then run the same command again: nothing is built again"
            raise
        if publication.caution:
            self._stages.notice(f"{publication.place}: {publication.caution}")
        for alias, number in publication.elsewhere.items():
            self._stages.notice(
                f"{alias} of {publication.model} in {publication.place} stands for"
                f" version {number}, and was left so: version"
                f" {publication.version}, which was there already, is this release"
            )
        return publication

    def _outgoing(self, published: PublishedVersion) -> Outgoing:
        from plansmith.stores.publication import Outgoing

        manifest = self._repository.manifest(published.name, published.version)
        return Outgoing(Path(published.release), manifest, self._stages.digester)


@dataclass(frozen=True)
class ReleaseArtifacts:
    """Release artifacts: the results of the previous steps, and the input of the first.

    `served` is None without a server, `before` in a dry run; `companions`: by name, the models beside the model;
    `script`: what a script was found to answer, where one answers in their place.
    """

    model: CompiledModel
    before: Fingerprint | None
    companions: Mapping[str, CompiledModel] = field(default_factory=dict)
    script: StepResult[Script] | None = None
    package: StepResult[Package] | None = None
    served: StepResult[ServedReport] | None = None

    @property
    def packaged(self) -> StepResult[Package]:
        """The package, once it exists."""
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
    """Publish the results as a release unless the newest is identical, switch the repository view, and deliver it.

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
            existing = _published_before(stages, repository, manifest)
            clock.is_missing = existing is None
            return existing
        servers = _reachable_servers(stages, spec)
        again = reproduction(
            spec, reference, manifest.source, relative_to=relative_to, data=manifest.data, beside=manifest.beside
        )
        require_not_superseded(spec, _noted(repository, manifest.name))
        texts = {**again, "build.log": stages.worker_log()}
        assert artifacts.before is not None
        leading = repository.leading(manifest.name)
        newest = repository.readable(manifest.name, leading) if leading is not None else None
        published = repository.publish(
            manifest,
            content,
            texts,
            allow_interface_change=spec.allow_interface_change,
            force=spec.force,
            waiting=stages.waits_for_publisher,
            described=_describer(stages, artifacts.before, texts),
            servers=servers,
        )
        basis = completed(artifacts.before, spec, artifacts.model, artifacts.companions)
        note = partial(_note, stages, repository, basis)
        note(published)
        published = deliveries.deliver(published, note)
        deliveries.note(published, _delivered(basis, published))
        clock.cached = published.unchanged and all(publication.unchanged for publication in published.publications)
        _notice_unserved(stages, spec, published)
        if newest is not None and not published.unchanged and (less := narrowings(newest, manifest)):
            stages.notice(f"version {published.version} is for less than version {newest.version}: {', '.join(less)}")
        return published, manifest.model_copy(update={"version": published.version})


def _reachable_servers(stages: StageRunner, spec: ModelSpec) -> ServerGroup | None:
    """Return the servers that have to load the release; None without such."""
    if not spec.load_into:
        return None
    from plansmith.triton.server.live import ServerGroup

    servers = ServerGroup(spec.load_into, stages.progress, load_seconds=spec.load_seconds, serves=spec.triton.serves)
    servers.require_reachable()
    return servers


def _describer(
    stages: StageRunner, before: Fingerprint, texts: Mapping[str, str]
) -> Callable[[Manifest], Mapping[str, str]]:
    """Return what makes the report and the statements of a release once it has its number.

    Args:
        stages: the compile's steps.
        before: what the release is made from.
        texts: the other texts in it.
    """
    builder, tools = builder_id(), distributions_of(before)

    def describe(manifest: Manifest) -> Mapping[str, str]:
        from plansmith.attestations.materials import BuildRun

        return _report(manifest) | attestations_of(manifest, BuildRun(builder, stages.started, tools), texts)

    return describe


def _content(artifacts: ReleaseArtifacts) -> dict[str, Path]:
    """Return the release's files by path: those of the package, and those that only the release keeps."""
    package = artifacts.packaged
    return {name: package.folder / name for name in package.record.files} | _auxiliary_files(artifacts)


def _auxiliary_files(artifacts: ReleaseArtifacts) -> dict[str, Path]:
    """Return the files that Triton does not read: reference outputs, and records of the build."""
    files = dict(artifacts.model.validation_files())
    for name, companion in artifacts.companions.items():
        files |= {f"{BESIDE_FOLDER}/{name}/{place}": path for place, path in companion.validation_files().items()}
    if artifacts.script is not None:
        files |= {case.file: artifacts.script.folder / case.file for case in artifacts.script.record.cases}
    return files


def _manifest(stages: StageRunner, spec: ModelSpec, artifacts: ReleaseArtifacts) -> Manifest:
    """Return the manifest of the release, which has no version number yet."""
    package, model = artifacts.packaged, artifacts.model
    files = stages.digester.entries(package.folder, [package.folder / name for name in package.record.files])
    places = sorted(_auxiliary_files(artifacts).items())
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
        beside={name: companion.released() for name, companion in artifacts.companions.items()},
        script=artifacts.script.record if artifacts.script else None,
        package=package.record,
        validation=model.validation.record,
        served=artifacts.served.record if artifacts.served else None,
        files=(*files, *(stages.digester.entry(path, place) for place, path in places)),
        steps=tuple(stages.records),
    )


def _published_before(
    stages: StageRunner, repository: ModelRepository, manifest: Manifest
) -> tuple[PublishedVersion, Manifest] | None:
    """Return the newest version if it equals what a dry run would publish."""
    newest = repository.newest(manifest.name)
    if newest is None or not repository.holds(newest, manifest):
        return None
    published = stages.results["publish"] = repository.published(newest, unchanged=True)
    return published, newest


def _notice_unserved(stages: StageRunner, spec: ModelSpec, published: PublishedVersion) -> None:
    """Notify that Triton does not serve a version which its spec's version policy excludes."""
    if spec.triton.serves(published.version):
        return
    unasked = f"; not loaded into {', '.join(spec.load_into)}" if spec.load_into else ""
    stages.notice(f"Triton does not serve version {published.version}: triton.version_policy names others{unasked}")


def _noted(repository: ModelRepository, model: str) -> Fingerprint | None:
    """Return the fingerprint of the newest version; None if it cannot be read."""
    try:
        return repository.basis(model)
    except RepositoryError:
        return None


def _note(stages: StageRunner, repository: ModelRepository, basis: Fingerprint, published: PublishedVersion) -> None:
    """Record the fingerprint of a version, and where it was published so far.

    One that is not noted stands, and a fleet takes it for stale.
    """
    try:
        repository.store_fingerprint(published.name, _delivered(basis, published), stages.waits_for_publisher)
    except OSError as error:
        stages.notice(f"what version {published.version} was made from could not be noted: {error}")


def _delivered(basis: Fingerprint, published: PublishedVersion) -> Fingerprint:
    """Return the fingerprint of a version, with the destinations published to so far."""
    places = basis.destinations[: len(published.publications)]
    stored = {place: publication.digest for place, publication in zip(places, published.publications, strict=True)}
    return basis.model_copy(update={"version": published.version, "destinations": places, "stored": stored})


def _report(manifest: Manifest) -> dict[str, str]:
    """Return the report of a release, by the name of its file."""
    from plansmith.records.release import REPORT_FILE
    from plansmith.report.render import render
    from plansmith.report.verdict import facts_of

    return {REPORT_FILE: render(facts_of(manifest))}
