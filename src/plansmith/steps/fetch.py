"""The first step: a source, whatever its kind, becomes a folder with all that the model consists of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.mlflow_uri import RegisteredName
from plansmith.config.s3_uri import S3Uri
from plansmith.config.source_reference import SourceReference, is_model_scheme
from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, SourceError
from plansmith.pipelines.detect import settled_task
from plansmith.records.model import BARE_SCHEMES, SourceModel, SourceScheme
from plansmith.sources import directory, onnx_file
from plansmith.sources.hub import Snapshot, fetch_snapshot
from plansmith.sources.mlflow.flavors import Wishes
from plansmith.sources.mlflow.model_version import FoundVersion, find_version
from plansmith.sources.mlflow.module_files import module_files
from plansmith.sources.reference import refuse_unfitting
from plansmith.sources.s3.bucket_model import FoundModel, find_model
from plansmith.steps.cache.local import ENTRY_FILE
from plansmith.steps.runner import Finished, StageRunner, WouldRun
from plansmith.system.digest import digest_of, digest_of_files


@dataclass(frozen=True)
class _Found:
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


def fetch(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> Finished[SourceModel]:
    """Bring the model here: a directory by content, what a hub, registry or bucket has, or random weights.

    Raises:
        SourceError: there is no such model, or it may not be read.
        EnvironmentFault: the hub, registry or bucket cannot be reached.
        UsageError: the spec asks what the model cannot do.
    """
    with stages.timed("fetch") as clock:
        hashed = stages.digester.hashed
        found = _random(stages, spec, reference) if spec.random_weights else _given(stages, spec, reference)
        scheme = _scheme_of(found, spec)
        known, licence = True, None
        if scheme == "onnx":
            paths, known = _graph_files(stages, Path(found.location))
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
        stages.made["fetch"] = record
        return Finished(record, found.folder, digest_of([record.scheme, record.digest]), clock.cached, tuple(paths))


def require_unchanged(stages: StageRunner, spec: ModelSpec, source: Finished[SourceModel]) -> None:
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


def _graph_files(stages: StageRunner, path: Path) -> tuple[list[Path], bool]:
    """The files of an ONNX model, and whether they were known; a graph may come from anywhere: the worker reads it."""
    try:
        digest = stages.digester.file(path, foreign=True)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", remedy="check its permissions") from error

    def find(_: Path) -> Any:
        found = stages.heavy("graph_files", path=str(path))
        if stages.digester.file(path, foreign=True) != digest:
            raise _changed(path)
        return found

    entry, cached = stages.entry("fetch", [digest], {"of": "graph_files"}, find, tools="graph_files")
    return onnx_file.files_of(path, entry.record["weights"]), cached


def model_paths(folder: Path, spec: ModelSpec) -> list[Path]:
    """The files of a model directory; where it was made here, the cache's own note lies beside them.

    Raises:
        SourceError: as `directory.model_files`.
    """
    found = directory.model_files(folder, trust_remote_code=spec.trust_remote_code, allow_pickle=spec.allow_pickle)
    return [path for path in found if path.name != ENTRY_FILE]


def _given(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _Found:
    """The model with its own weights."""
    if not is_model_scheme(reference.scheme):
        return _registered(stages, spec, reference)
    if reference.path is not None and reference.full_path is not None:
        folder = reference.full_path.parent if reference.scheme == "onnx" else reference.path
        return _Found(folder, str(reference.full_path), None, cached=True, reference=reference)
    location, cached = reference.location, True
    if reference.scheme == "timm":
        entry, cached = stages.entry(
            "fetch", [], {"timm": location}, lambda _: stages.heavy("timm_hub_id", name=reference.location)
        )
        location = entry.record["hub_id"]
    snapshot = _snapshot(stages, spec, reference, location)
    return _Found(snapshot.folder, location, snapshot.commit, cached, reference)


def _registered(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _Found:
    """A model that a registry or bucket has, as it lies in the cache; whoever has it is asked each time what it is."""
    wishes = Wishes(trust_remote_code=spec.trust_remote_code, allow_pickle=spec.allow_pickle)
    in_bucket = reference.scheme == "s3"
    stages.progress(f"asking {'S3' if in_bucket else 'MLflow'} for {reference.location}")
    found: FoundVersion | FoundModel
    try:
        if in_bucket:
            found = find_model(S3Uri(reference.location, reference.revision or ""), wishes)
            address, revision = reference.location, found.revision
        else:
            found = find_version(RegisteredName.of(reference.location, str(reference.revision)), wishes)
            address, revision = f"mlflow:{reference.location}", found.version.number
    except EnvironmentFault as fault:
        if stages.dry and fault.transient:
            raise WouldRun("fetch") from fault
        raise
    name = "in_bucket" if in_bucket else "registered"
    entry, cached = stages.entry(
        "fetch",
        [],
        {"of": name, **found.identity()},
        lambda out: found.download(out, stages.progress),
        tools=name,
    )
    scheme, graph = entry.record["scheme"], entry.record["graph"]
    path = entry.folder / graph
    read = SourceReference(scheme, str(path), None, path)
    return _Found(entry.folder, str(path), revision, cached, read, address)


def _scheme_of(found: _Found, spec: ModelSpec) -> SourceScheme:
    """How a model is read; of one that a registry or bucket has, only its files tell, and whether the spec fits.

    Raises:
        UsageError: it does not.
    """
    scheme = found.reference.scheme
    assert is_model_scheme(scheme)
    if found.registered:
        refuse_unfitting(found.reference, spec)
    return scheme


def _random(stages: StageRunner, spec: ModelSpec, reference: SourceReference) -> _Found:
    """The architecture with random weights, made once and kept in the cache."""
    location, commit, inputs = reference.location, None, [reference.location]
    if reference.path is not None or reference.scheme == "hf":
        folder = reference.path
        if folder is None:
            snapshot = _snapshot(stages, spec, reference, location)
            folder, commit = snapshot.folder, snapshot.commit
        described = directory.described(model_paths(folder, spec))
        directory.require_json(described)
        inputs = [digest_of_files(stages.digester.entries(folder, described, foreign=True))]
        location = str(folder.resolve())
    parameters = {"scheme": reference.scheme, "trust_remote_code": spec.trust_remote_code, "task": spec.task}
    entry, cached = stages.entry(
        "fetch",
        inputs,
        parameters,
        lambda out: stages.heavy("make_random", location=location, out=str(out), **parameters),
    )
    return _Found(entry.folder, reference.location, commit, cached, reference)


def _snapshot(stages: StageRunner, spec: ModelSpec, reference: SourceReference, repo: str) -> Snapshot:
    """From the hub; a dry run looks into its local cache only."""
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
    except EnvironmentFault as fault:
        if stages.dry:
            raise WouldRun("fetch") from fault
        raise
