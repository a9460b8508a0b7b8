"""The first step: a source, whatever its kind, becomes a folder with all that the model consists of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plansmith.compilers.export.requests import LoadRequest
from plansmith.config.mlflow_uri import RegisteredName
from plansmith.config.s3_uri import S3Uri
from plansmith.config.source_reference import SourceReference, is_model_scheme
from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, SourceError
from plansmith.pipelines.detect import settled_task
from plansmith.records.model import BARE_SCHEMES, Record, SourceModel, SourceScheme
from plansmith.sources import directory, onnx_file
from plansmith.sources.hub import Snapshot, fetch_snapshot
from plansmith.sources.mlflow.flavors import FlavorOptions
from plansmith.sources.mlflow.model_version import RegisteredVersion, find_version
from plansmith.sources.mlflow.module_files import module_files
from plansmith.sources.reference import refuse_unfitting
from plansmith.sources.s3.bucket_model import BucketModel, find_model
from plansmith.steps.cache.local import ENTRY_FILE
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.steps.worker import tasks
from plansmith.steps.worker.tasks import GraphFile, GraphWeights, RandomModelRequest, TimmName
from plansmith.system.digest import digest_of, digest_of_files

PLACE = {"folder", "location"}
"""The fields of a `LoadRequest` that decide nothing: a digest tells what lies there."""


class DownloadedModel(Record):
    """A model of a registry or bucket in the cache: how it is read, and its ONNX file, if it is one."""

    scheme: SourceScheme
    graph: str


@dataclass(frozen=True)
class _FetchedModel:
    """A model's folder, the place and commit it came from, and whether nothing had to be made or asked.

    Args:
        folder: holds the model.
        location: where it came from; of an ONNX file, where it lies.
        commit: of the hub, the version of a registered model, or the revision of one in a bucket.
        cached: nothing was made or asked.
        reference: how it is read, where the source does not say that itself.
        registered: what a registry or bucket calls it.
    """

    folder: Path
    location: str
    commit: str | None
    cached: bool
    reference: SourceReference
    registered: str = ""


def fetch(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> StepResult[SourceModel] | None:
    """Bring the model here: a directory by content, what a hub, registry or bucket has, or random weights.

    Returns:
        The model; None where it only looks, and the model is not here.

    Raises:
        SourceError: there is no such model, or it may not be read.
        EnvironmentFault: the hub, registry or bucket cannot be reached.
        UsageError: the spec asks what the model cannot do.
    """
    with stages.timed("fetch") as clock:
        hashed = stages.digester.hashed
        found = _random(stages, spec, reference) if spec.random_weights else _given(stages, spec, reference)
        if found is None:
            clock.is_missing = True
            return None
        scheme = _scheme_of(found, spec)
        known, licence = True, None
        if scheme == "onnx":
            graph = _graph_files(stages, Path(found.location))
            if graph is None:
                clock.is_missing = True
                return None
            paths, known = graph
        elif scheme == "torch":
            paths = module_files(found.folder)
        else:
            paths = model_paths(found.folder, spec)
            directory.require_json(paths)
            directory.require_kind(found.folder, scheme)
            directory.require_weights(found.folder, allow_pickle=spec.allow_pickle)
            licence = directory.read_licence(found.folder)
        files = stages.digester.entries(found.folder, paths, foreign=not spec.random_weights)
        clock.cached = found.cached and known and stages.digester.hashed == hashed
        record = SourceModel(
            scheme=scheme,
            location=found.location,
            revision=found.commit,
            licence=licence,
            digest=digest_of_files(files),
            random_weights=spec.random_weights,
            trust_remote_code=spec.trust_remote_code,
            task=settled_task(scheme, found.folder, spec.pipeline, task=spec.task) or None,
            registered=found.registered,
        )
        stages.results["fetch"] = record
        return StepResult(record, found.folder, digest_of([record.scheme, record.digest]), clock.cached, tuple(paths))


def load_request(spec: ModelSpec, source: StepResult[SourceModel]) -> LoadRequest:
    """How the worker loads the model of a spec."""
    return LoadRequest(
        scheme=source.record.scheme,
        folder=source.folder,
        location=source.record.location,
        trust_remote_code=source.record.trust_remote_code,
        task=source.record.task or "",
        allow_pickle=spec.allow_pickle,
        inputs=spec.described_inputs,
        outputs=spec.outputs,
        device=spec.device,
    )


def require_unchanged(stages: StageRunner, spec: ModelSpec, source: StepResult[SourceModel]) -> None:
    """See that the model on the disk is still the one whose digest stands in the record.

    Raises:
        SourceError: it was written to while it was read.
    """
    paths = list(source.files) if source.record.scheme in BARE_SCHEMES else model_paths(source.folder, spec)
    try:
        files = stages.digester.entries(source.folder, paths, foreign=not spec.random_weights)
    except FileNotFoundError as error:
        raise _changed(source.folder) from error
    if digest_of_files(files) != source.record.digest:
        raise _changed(source.folder)


def _changed(place: Path) -> SourceError:
    return SourceError(f"{place} changed while it was read", remedy="wait until it is written, and run again")


def _graph_files(stages: StageRunner, path: Path) -> tuple[list[Path], bool] | None:
    """The files of an ONNX model, and whether they were known; a graph may come from anywhere: the worker reads it."""
    try:
        digest = stages.digester.file(path, foreign=True)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", remedy="check its permissions") from error

    def find(_: Path) -> GraphWeights:
        found = stages.run_in_worker(tasks.GRAPH_FILES, GraphFile(path=path))
        if stages.digester.file(path, foreign=True) != digest:
            raise _changed(path)
        return found

    held = stages.entry("fetch", [digest], {"of": "graph_files"}, find, tools="graph_files")
    if held is None:
        return None
    entry, cached = held
    return onnx_file.files_of(path, entry.record["weights"]), cached


def model_paths(folder: Path, spec: ModelSpec) -> list[Path]:
    """The files of a model directory; where it was made here, the cache's own note lies beside them.

    Raises:
        SourceError: as `directory.model_files`.
    """
    found = directory.model_files(folder, trust_remote_code=spec.trust_remote_code, allow_pickle=spec.allow_pickle)
    return [path for path in found if path.name != ENTRY_FILE]


def _given(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _FetchedModel | None:
    """The model with its own weights."""
    if not is_model_scheme(reference.scheme):
        return _registered(stages, spec, reference)
    if reference.path is not None and reference.full_path is not None:
        folder = reference.full_path.parent if reference.scheme == "onnx" else reference.path
        return _FetchedModel(folder, str(reference.full_path), None, cached=True, reference=reference)
    location, cached = reference.location, True
    if reference.scheme == "timm":
        name = TimmName(name=location)
        held = stages.entry("fetch", [], {"timm": location}, lambda _: stages.run_in_worker(tasks.TIMM_HUB_ID, name))
        if held is None:
            return None
        entry, cached = held
        location = entry.record["hub_id"]
    snapshot = _snapshot(stages, spec, reference, location)
    if snapshot is None:
        return None
    return _FetchedModel(snapshot.folder, location, snapshot.commit, cached, reference)


def _registered(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _FetchedModel | None:
    """A model that a registry or bucket has, as it lies in the cache; whoever has it is asked each time what it is."""
    wishes = FlavorOptions(trust_remote_code=spec.trust_remote_code, allow_pickle=spec.allow_pickle)
    in_bucket = reference.scheme == "s3"
    stages.progress(f"asking {'S3' if in_bucket else 'MLflow'} for {reference.location}")
    found: RegisteredVersion | BucketModel
    try:
        if in_bucket:
            found = find_model(S3Uri(reference.location, reference.revision or ""), wishes)
            address, revision = reference.location, found.revision
        else:
            found = find_version(RegisteredName.of(reference.location, str(reference.revision)), wishes)
            address, revision = f"mlflow:{reference.location}", found.version.number
    except EnvironmentFault as fault:
        if stages.dry and fault.transient:
            return None
        raise
    name = "in_bucket" if in_bucket else "registered"
    held = stages.entry(
        "fetch",
        [],
        {"of": name, **found.identity()},
        lambda out: DownloadedModel.model_validate(found.download(out, stages.progress)),
        tools=name,
    )
    if held is None:
        return None
    entry, cached = held
    downloaded = DownloadedModel.model_validate(entry.record)
    path = entry.folder / downloaded.graph
    read = SourceReference(downloaded.scheme, str(path), None, path)
    return _FetchedModel(entry.folder, str(path), revision, cached, read, address)


def _scheme_of(found: _FetchedModel, spec: ModelSpec) -> SourceScheme:
    """How a model is read; of one that a registry or bucket has, only its files tell, and whether the spec fits.

    Raises:
        UsageError: it does not.
    """
    scheme = found.reference.scheme
    assert is_model_scheme(scheme)
    if found.registered:
        refuse_unfitting(found.reference, spec)
    return scheme


def _random(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _FetchedModel | None:
    """The architecture with random weights, made once and kept in the cache."""
    location, commit, inputs = reference.location, None, [reference.location]
    if reference.path is not None or reference.scheme == "hf":
        folder = reference.path
        if folder is None:
            snapshot = _snapshot(stages, spec, reference, location)
            if snapshot is None:
                return None
            folder, commit = snapshot.folder, snapshot.commit
        described = directory.described(model_paths(folder, spec))
        directory.require_json(described)
        inputs = [digest_of_files(stages.digester.entries(folder, described, foreign=True))]
        location = str(folder.resolve())
    assert is_model_scheme(reference.scheme)
    request = RandomModelRequest(
        scheme=reference.scheme,
        location=location,
        trust_remote_code=spec.trust_remote_code,
        task=spec.task,
        out=Path(),
    )
    held = stages.entry(
        "fetch",
        inputs,
        request.model_dump(mode="json", exclude={"location", "out"}),
        lambda out: stages.run_in_worker(tasks.MAKE_RANDOM, request.model_copy(update={"out": out})),
    )
    if held is None:
        return None
    entry, cached = held
    return _FetchedModel(entry.folder, reference.location, commit, cached, reference)


def _snapshot(stages: StageRunner, spec: ModelSpec, reference: SourceReference, repo: str) -> Snapshot | None:
    """From the hub; one that only looks has its local cache alone, and gives None where nothing is there."""
    try:
        return fetch_snapshot(
            repo,
            reference.revision,
            trust_remote_code=spec.trust_remote_code,
            allow_pickle=spec.allow_pickle,
            with_weights=not spec.random_weights,
            offline=stages.dry,
            progress=stages.progress,
        )
    except EnvironmentFault:
        if stages.dry:
            return None
        raise
