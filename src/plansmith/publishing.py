"""The step that numbers a release and shows it to Triton."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from plansmith import __version__
from plansmith.basis import Basis
from plansmith.config import ModelSpec
from plansmith.delivering import Deliveries
from plansmith.digest import digest_of_files
from plansmith.engines import Engine
from plansmith.manifest import Manifest, Package, PublishedVersion
from plansmith.parts import Pipeline
from plansmith.provenance import completed
from plansmith.report import REPORT_FILE, facts_of, render
from plansmith.reports import ServedReport, ValidationReport
from plansmith.reproduction import reproduction
from plansmith.sources.reference import SourceReference
from plansmith.stages import Finished, StageRunner, WouldRun
from plansmith.triton.loaded_into import LoadedInto
from plansmith.triton.repository import ModelRepository
from plansmith.types import DataSet, LoweredModel, OnnxModel, SourceModel


@dataclass(frozen=True)
class Made:
    """What the steps before have made, and what the first of them began with.

    `data` is None where no samples were needed, `pipeline` where nothing stands around the model,
    `served` without a server, `before` in a dry run.
    """

    source: Finished[SourceModel]
    onnx: Finished[OnnxModel]
    data: Finished[DataSet] | None
    lowered: Finished[LoweredModel]
    engine: Finished[Engine]
    validation: Finished[ValidationReport]
    pipeline: Finished[Pipeline] | None
    package: Finished[Package]
    served: Finished[ServedReport] | None
    before: Basis | None


def publish(
    stages: StageRunner,
    repository: ModelRepository,
    spec: ModelSpec,
    reference: SourceReference,
    made: Made,
    *,
    deliveries: Deliveries,
    relative_to: Path,
) -> tuple[PublishedVersion, Manifest]:
    """Make a release of what the steps made, unless the newest one is the same, exchange the view, and deliver it.

    What is delivered already is found there, so that the same call goes on after what went wrong.

    Args:
        stages: the compile's steps.
        repository: where the release goes.
        spec: what was asked for, with the target's name in full.
        reference: the source as typed.
        made: by the steps before.
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
        package = made.package
        names = package.record.files
        files = stages.digester.entries(package.folder, [package.folder / name for name in names])
        told = {name: made.engine.folder / name for plan in made.engine.record.plans.values() for name in plan.told}
        references = {case.file: made.onnx.folder / case.file for case in made.onnx.record.reference.cases}
        pipeline = made.pipeline
        raw = {case.file: pipeline.folder / case.file for case in pipeline.record.cases} if pipeline else {}
        manifest = Manifest(
            name=package.record.model,
            version=0,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            plansmith=__version__,
            target=spec.target,
            release_digest=digest_of_files(files),
            spec=spec.model_dump(mode="json"),
            source=made.source.record,
            onnx=made.onnx.record,
            data=made.data.record if made.data else None,
            lowered=made.lowered.record,
            engine=made.engine.record,
            pipeline=pipeline.record if pipeline else None,
            package=package.record,
            validation=made.validation.record,
            served=made.served.record if made.served else None,
            files=(
                *files,
                *stages.digester.entries(made.onnx.folder, [*references.values()]),
                *stages.digester.entries(made.engine.folder, [*told.values()]),
                *(stages.digester.entries(pipeline.folder, [*raw.values()]) if pipeline else ()),
            ),
            steps=tuple(stages.records),
        )
        if stages.dry:
            newest = repository.newest(manifest.name)
            if newest is None or not repository.holds(newest, manifest):
                raise WouldRun("publish")
            published = stages.made["publish"] = repository.published(newest, unchanged=True)
            return published, newest
        servers = LoadedInto(spec.load_into, stages.progress, load_seconds=spec.load_seconds, serves=spec.triton.serves)
        servers.require_reachable()
        again = reproduction(spec, reference, made.source.record, relative_to=relative_to, data=manifest.data)
        published = repository.publish(
            manifest,
            {name: package.folder / name for name in names} | references | told | raw,
            {**again, "build.log": stages.worker_log()},
            allow_interface_change=spec.allow_interface_change,
            force=spec.force,
            waiting=stages.waits_for_publisher,
            described=lambda numbered: {REPORT_FILE: render(facts_of(numbered))},
            servers=servers if spec.load_into else None,
        )
        assert made.before is not None
        basis = completed(made.before, spec, made.source, manifest.data)
        note = partial(_note, stages, repository, basis)
        note(published)
        published = deliveries.deliver(published, note)
        deliveries.note(published, _delivered(basis, published))
        clock.cached = published.unchanged and all(one.unchanged for one in published.publications)
        if not spec.triton.serves(published.version):
            unasked = f"; not loaded into {', '.join(spec.load_into)}" if spec.load_into else ""
            words = f"Triton does not serve version {published.version}: triton.version_policy names others"
            stages.notice(f"{words}{unasked}")
        return published, manifest.model_copy(update={"version": published.version})


def _note(stages: StageRunner, repository: ModelRepository, basis: Basis, published: PublishedVersion) -> None:
    """Note what a version was made from, and where it was published to so far.

    One that is not noted stands, and a fleet takes it for stale.
    """
    try:
        repository.note_basis(published.name, _delivered(basis, published), stages.waits_for_publisher)
    except OSError as error:
        stages.notice(f"what version {published.version} was made from could not be noted: {error}")


def _delivered(basis: Basis, published: PublishedVersion) -> Basis:
    """What a version was made from, with where it was published to so far."""
    places = basis.destinations[: len(published.publications)]
    stored = {place: made.digest for place, made in zip(places, published.publications, strict=True)}
    return basis.model_copy(update={"version": published.version, "destinations": places, "stored": stored})
