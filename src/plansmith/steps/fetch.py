"""Fetch step: turns a source of any kind into a folder with the complete model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.export.requests import LoadRequest
from plansmith.config.source_reference import FILE_SUFFIXES, RegisteredName, S3Uri, SourceReference, is_model_scheme
from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, SourceError
from plansmith.records.model import BARE_SCHEMES, Record, SourceModel, SourceScheme
from plansmith.sources import directory, onnx_file
from plansmith.sources.reference import refuse_unfitting
from plansmith.steps.cache.local import ENTRY_FILE
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.system.digest import digest_of, digest_of_files

if TYPE_CHECKING:
    from plansmith.sources.hub import Snapshot
    from plansmith.sources.mlflow.model_version import RegisteredVersion
    from plansmith.sources.s3 import BucketModel
    from plansmith.steps.worker.tasks import GraphWeights

PLACE = {"folder", "location"}
"""The fields of a `LoadRequest` that decide nothing: a digest tells what lies there."""


class DownloadedModel(Record):
    """Downloaded model of a registry or bucket in the cache: its loading scheme, and its ONNX file, if any."""

    scheme: SourceScheme
    graph: str


@dataclass(frozen=True)
class _FetchedModel:
    """Fetched model: its folder, source location and commit, and whether it came entirely from the cache.

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
    """Fetch the model: a directory by content, a hub, registry or bucket download, or random weights.

    Returns:
        The model; None where it only looks, and the model is not here.

    Raises:
        SourceError: there is no such model, or it may not be read.
        EnvironmentFault: the hub, registry or bucket cannot be reached.
        UsageError: the spec asks what the model cannot do.
    """
    with stages.timed("fetch") as clock:
        hashed = stages.digester.hashed
        model = _random(stages, spec, reference) if spec.random_weights else _source_model(stages, spec, reference)
        if model is None:
            clock.is_missing = True
            return None
        scheme = _scheme_of(model, spec)
        is_cached, licence = True, None
        if scheme == "onnx":
            graph = _graph_files(stages, Path(model.location))
            if graph is None:
                clock.is_missing = True
                return None
            paths, is_cached = graph
        elif scheme == "torch":
            from plansmith.sources.mlflow.module_files import module_files

            file = Path(model.location)
            paths = [file] if file.is_file() else module_files(model.folder)
        else:
            paths = model_paths(model.folder, spec)
            directory.require_json(paths)
            directory.require_kind(model.folder, scheme)
            directory.require_weights(model.folder, allow_pickle=spec.allow_pickle)
            licence = directory.read_licence(model.folder)
        files = stages.digester.entries(model.folder, paths, foreign=not spec.random_weights)
        clock.cached = model.cached and is_cached and stages.digester.hashed == hashed
        record = SourceModel(
            scheme=scheme,
            location=model.location,
            revision=model.commit,
            licence=licence,
            digest=digest_of_files(files),
            random_weights=spec.random_weights,
            trust_remote_code=spec.trust_remote_code,
            task=_settled_task(scheme, model.folder, spec) or None,
            registered=model.registered,
        )
        stages.results["fetch"] = record
        return StepResult(record, model.folder, digest_of([record.scheme, record.digest]), clock.cached, tuple(paths))


def _settled_task(scheme: SourceScheme, folder: Path, spec: ModelSpec) -> str:
    """Return the task that a model is loaded for, which its pipeline may need."""
    if spec.pipeline is None:
        return spec.task
    from plansmith.pipelines.detect import settled_task

    return settled_task(scheme, folder, spec.pipeline, task=spec.task)


def load_request(spec: ModelSpec, source: StepResult[SourceModel]) -> LoadRequest:
    """Return the request by which the worker loads a spec's model."""
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
    """Require that the model on disk still matches the digest in its record.

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
    """Return an ONNX model's files, and whether they were cached; the worker reads the graph, which is untrusted."""
    from plansmith.steps.worker import tasks

    try:
        digest = stages.digester.file(path, foreign=True)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", remedy="check its permissions") from error

    def find(_: Path) -> GraphWeights:
        files = stages.run_in_worker(tasks.GRAPH_FILES, tasks.GraphFile(path=path))
        if stages.digester.file(path, foreign=True) != digest:
            raise _changed(path)
        return files

    result = stages.entry("fetch", [digest], {"of": "graph_files"}, find, tools="graph_files")
    if result is None:
        return None
    entry, cached = result
    return onnx_file.files_of(path, entry.record["weights"]), cached


def model_paths(folder: Path, spec: ModelSpec) -> list[Path]:
    """Return the files of a model directory, without the cache's own note in directories made here.

    Raises:
        SourceError: as `directory.model_files`.
    """
    files = directory.model_files(folder, trust_remote_code=spec.trust_remote_code, allow_pickle=spec.allow_pickle)
    return [path for path in files if path.name != ENTRY_FILE]


def _source_model(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _FetchedModel | None:
    """Return the model with its own weights."""
    if not is_model_scheme(reference.scheme):
        return _registered(stages, spec, reference)
    if reference.path is not None and reference.full_path is not None:
        folder = reference.full_path.parent if reference.scheme in FILE_SUFFIXES else reference.path
        return _FetchedModel(folder, str(reference.full_path), None, cached=True, reference=reference)
    location, cached = reference.location, True
    if reference.scheme == "timm":
        from plansmith.steps.worker import tasks

        name = tasks.TimmName(name=location)
        result = stages.entry("fetch", [], {"timm": location}, lambda _: stages.run_in_worker(tasks.TIMM_HUB_ID, name))
        if result is None:
            return None
        entry, cached = result
        location = entry.record["hub_id"]
    snapshot = _snapshot(stages, spec, reference, location)
    if snapshot is None:
        return None
    return _FetchedModel(snapshot.folder, location, snapshot.commit, cached, reference)


def _registered(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _FetchedModel | None:
    """Return a registry's or bucket's model from the cache; its current identity is queried each time."""
    from plansmith.sources.mlflow.model_version import FlavorOptions, find_version
    from plansmith.sources.s3 import find_model

    wishes = FlavorOptions(trust_remote_code=spec.trust_remote_code, allow_pickle=spec.allow_pickle)
    in_bucket = reference.scheme == "s3"
    stages.progress(f"asking {'S3' if in_bucket else 'MLflow'} for {reference.location}")
    model: RegisteredVersion | BucketModel
    try:
        if in_bucket:
            model = find_model(S3Uri(reference.location, reference.revision or ""), wishes)
            address, revision = reference.location, model.revision
        else:
            model = find_version(RegisteredName.of(reference.location, str(reference.revision)), wishes)
            address, revision = f"mlflow:{reference.location}", model.version.number
    except EnvironmentFault as fault:
        if stages.dry and fault.transient:
            return None
        raise
    name = "in_bucket" if in_bucket else "registered"
    result = stages.entry(
        "fetch",
        [],
        {"of": name, **model.identity()},
        lambda out: DownloadedModel.model_validate(model.download(out, stages.progress)),
        tools=name,
    )
    if result is None:
        return None
    entry, cached = result
    downloaded = DownloadedModel.model_validate(entry.record)
    path = entry.folder / downloaded.graph
    read = SourceReference(downloaded.scheme, str(path), None, path)
    return _FetchedModel(entry.folder, str(path), revision, cached, read, address)


def _scheme_of(model: _FetchedModel, spec: ModelSpec) -> SourceScheme:
    """Return the scheme of a model; for registries and buckets only the files show it, and whether the spec fits.

    Raises:
        UsageError: it does not.
    """
    scheme = model.reference.scheme
    assert is_model_scheme(scheme)
    if model.registered:
        refuse_unfitting(model.reference, spec)
    return scheme


def _random(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _FetchedModel | None:
    """Return the architecture with random weights, created once and cached."""
    from plansmith.steps.worker import tasks

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
    request = tasks.RandomModelRequest(
        scheme=reference.scheme,
        location=location,
        trust_remote_code=spec.trust_remote_code,
        task=spec.task,
        out=Path(),
    )
    result = stages.entry(
        "fetch",
        inputs,
        request.model_dump(mode="json", exclude={"location", "out"}),
        lambda out: stages.run_in_worker(tasks.MAKE_RANDOM, request.model_copy(update={"out": out})),
    )
    if result is None:
        return None
    entry, cached = result
    return _FetchedModel(entry.folder, reference.location, commit, cached, reference)


def _snapshot(stages: StageRunner, spec: ModelSpec, reference: SourceReference, repo: str) -> Snapshot | None:
    """Return the hub snapshot; a dry run only uses the local cache, and returns None if it is missing there."""
    from plansmith.sources.hub import fetch_snapshot

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
