"""Finds what decides the result of a compile, without doing any of its work.

Files are hashed through the digester's memo, distributions asked for their versions, the hub only where that is wanted.
What a compile brings here itself (the files of a model, commits, data) is known from the records of its steps; all else
is taken before its first step: what changes meanwhile is another thing at the next look.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from plansmith.config.data import DataSpec
from plansmith.config.source_reference import SourceReference, is_model_scheme, parse_reference
from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import is_target_file, load_target
from plansmith.config.triton import TritonOptions
from plansmith.errors import EnvironmentFault, RepositoryError, SourceError
from plansmith.records.destination import CURRENT, Destination
from plansmith.records.fingerprint import Fingerprint
from plansmith.sources.dataset import find_data
from plansmith.sources.directory import described
from plansmith.sources.hub import known_commit, newest_commit
from plansmith.sources.hub_dataset import CONVERTED
from plansmith.sources.mlflow.model_version import newest_version
from plansmith.sources.s3.bucket_model import newest_revision
from plansmith.steps.artifacts import CompiledModel, companion_specs
from plansmith.steps.fetch import model_paths
from plansmith.steps.provenance.tools import tools_of
from plansmith.system.digest import Digester, digest_of, digest_of_files

NO_SAY = {
    *("name", "target", "repository", "artifacts", "shared_cache", "publish", "allow_interface_change", "force"),
    *("load_into", "load_seconds", "tritonserver", "source_override"),
}
"""Fields of a spec that say where something is and how to go about it, and what stands elsewhere in a basis."""

_NO_SAY_IN = {
    "data": {"path"},
    "lowering": {"autocast"},
    "tensorrt": {"trtexec", "deadline_minutes", "plugins"},
}
_OF_ENGINES = {"tensorrt", "python"}
_WORDS_OF_A_TARGET = {"name", "description", "sources", "inferred"}
_NO_OPTIONS = TritonOptions()

_NOTHING = Fingerprint(version=0, spec={}, source="", revision="", data="", target="", tools={}, destinations=())
_MOST_FAILURES = 3
_DIGEST_LETTERS = 24

REGISTERED = "registered model"
"""What MLflow is asked for, where the hub is asked for a model or a data set."""

IN_BUCKET = "model in S3"
"""What S3 is asked for."""

_CONVERTED = f"{CONVERTED}@"
"""Begins the commit of a data set that was read from the hub's own copy."""

Notice = Callable[[str], None]


class Hub:
    """Says at which commit the branches of the hub are; each is asked for once.

    Where the hub must not be asked (HF_HUB_OFFLINE), a compile would take what its local cache has, which is the answer
    then, and told once. A hub that fails several times is not asked again.
    The same goes for MLflow's server, which knows the versions of registered models, and for S3.

    Args:
        ask: ask it; what is known stands otherwise.
        notice: told where it could not be asked.
    """

    def __init__(self, *, ask: bool, notice: Notice = lambda _: None) -> None:
        self._ask = ask
        self._notice = notice
        self._found: dict[tuple[str, str | None, str], str] = {}
        self._failures: Counter[str] = Counter()
        self._told: set[str] = set()

    def commit(self, repo: str, revision: str | None, known: str, *, of: str = "model") -> str:
        """The commit of a branch, tag or commit.

        Args:
            repo: its id.
            revision: main when None.
            known: the commit as it was, which stands where nobody says otherwise.
            of: "model", "dataset", or REGISTERED: then `repo` is models:/name, and `revision` @alias, a number or
                latest; or IN_BUCKET: then it is the address of a folder or archive.

        Raises:
            SourceError: the hub has no such thing, or it may not be read.
        """
        if not self._ask:
            return known
        key = (repo, revision, of)
        if key not in self._found:
            self._found[key] = self._look(repo, revision, of)
        return self._found[key] or known

    def _look(self, repo: str, revision: str | None, of: str) -> str:
        is_hub = of not in {REGISTERED, IN_BUCKET}
        who = "hub" if is_hub else of
        if self._failures[who] == _MOST_FAILURES:
            return ""
        try:
            if is_hub:
                found = newest_commit(repo, revision, of=of)
            else:
                found = (newest_version if of == REGISTERED else newest_revision)(repo, revision or "")
        except EnvironmentFault as fault:
            if not fault.transient:  # by somebody's will
                cached = "what the local cache has of the hub counts" if is_hub else "the versions that are known stand"
                if who not in self._told:
                    self._notice(f"{fault.message}: {cached}, for all models")
                self._told.add(who)
                return known_commit(repo, revision, of=of) if is_hub else ""
            self._failures[who] += 1
            ending = "; it is not asked again" if self._failures[who] == _MOST_FAILURES else ""
            self._notice(f"{fault.message}: the {'commit' if is_hub else 'version'} that is known stands{ending}")
            return ""
        self._failures[who] = 0
        return found


def fingerprint_of(
    spec: ModelSpec, *, relative_to: Path, digester: Digester, hub: Hub | None = None, known: Fingerprint | None = None
) -> Fingerprint:
    """What a compile of a spec would be made from now, with no version.

    Args:
        spec: what is wanted.
        relative_to: the folder that paths in it start from.
        digester: hashes files, and remembers them.
        hub: says at which commit its branches are; when None, what is known stands.
        known: what the newest version was made from; it tells what belongs to a source that only a look into it would
            tell otherwise: the names of the weights beside an ONNX graph, the hub's id of a timm model.

    Raises:
        PlansmithError: the source, the data or the target are not there, or cannot be read.
    """
    hub = hub or Hub(ask=False)
    reference = parse_reference(spec.source, relative_to=relative_to)
    found: dict[str, Any] = {}
    then = known if known is not None and known.spec.get("source") == spec.source else _NOTHING
    if reference.path is not None:
        found = {"source": _own_files(spec, reference, then.weights, digester), "weights": then.weights}
    elif not is_model_scheme(reference.scheme):
        of = REGISTERED if reference.scheme == "mlflow" else IN_BUCKET
        version = hub.commit(reference.location, reference.revision, then.revision, of=of)
        found = {"revision": version, "hub_id": reference.location}
    elif not (spec.random_weights and reference.scheme == "timm"):
        hub_id = reference.location if reference.scheme == "hf" else then.hub_id
        commit = hub.commit(hub_id, reference.revision, then.revision) if hub_id else ""
        found = {"revision": commit, "hub_id": hub_id}
    if spec.data is not None and not spec.data.entry_point:
        found["data"] = _data(spec.data, relative_to, digester, hub, _known_data(known, spec.data))
    noted = known.beside if known is not None else {}
    found["beside"] = {
        name: fingerprint_of(one, relative_to=relative_to, digester=digester, hub=hub, known=noted.get(name))
        for name, one in companion_specs(spec).items()
    }
    return _surroundings(spec, reference, relative_to, digester).model_copy(update=found)


def with_overridden_source(spec: ModelSpec, noted: Fingerprint) -> ModelSpec:
    """A spec with the source that an event of a registry set for its newest version, where that still counts.

    It does until another event comes, or the spec names another source. A spec whose own source tracks what the event
    reported, such as an alias, is returned as it is.

    Args:
        spec: as its file has it.
        noted: what the newest version was made from.
    """
    override = noted.source_override
    if override is None or override.is_tracked or override.replaces != spec.source:
        return spec
    return spec.model_copy(update={"source": str(noted.spec["source"]), "source_override": override})


def require_not_superseded(spec: ModelSpec, noted: Fingerprint | None) -> None:
    """See that the published version does not come from a later event.

    Args:
        spec: that was built.
        noted: what the newest version was made from; None where nobody knows.

    Raises:
        RepositoryError: it does.
    """
    if spec.source_override is None or noted is None or noted.source_override is None:
        return
    if noted.source_override.at > spec.source_override.at:
        raise RepositoryError(
            f"{spec.source} is not published: a later event set {noted.spec['source']}, which is version"
            f" {noted.version}",
            remedy="leave it so, as what is served is what the registry reported last; to publish this one all the"
            " same, have the registry report it anew",
        )


def build_inputs(spec: ModelSpec, reference: SourceReference, *, relative_to: Path, digester: Digester) -> Fingerprint:
    """The part of a basis that no step of a compile finds; arguments and errors as for `fingerprint_of`."""
    beside = {
        name: build_inputs(
            one, parse_reference(one.source, relative_to=relative_to), relative_to=relative_to, digester=digester
        )
        for name, one in companion_specs(spec).items()
    }
    return _surroundings(spec, reference, relative_to, digester).model_copy(update={"beside": beside})


def _surroundings(spec: ModelSpec, reference: SourceReference, relative_to: Path, digester: Digester) -> Fingerprint:
    """As `build_inputs`, of a spec's own model alone."""
    is_drawn = spec.random_weights and reference.path is not None
    return Fingerprint(
        version=0,
        spec=_deciding(spec, relative_to, digester),
        source=_own_files(spec, reference, (), digester) if is_drawn else "",
        revision="",
        data=_entry_point(spec.data.entry_point, relative_to, digester) if spec.data is not None else "",
        target=target_digest(spec.target),
        tools=tools_of(spec, reference, relative_to),
        destinations=tuple(describe_destination(one, relative_to) for one in spec.publish),
        source_override=spec.source_override,
    )


def completed(
    basis: Fingerprint, spec: ModelSpec, model: CompiledModel, beside: Mapping[str, CompiledModel]
) -> Fingerprint:
    """A basis with what a compile itself found: the models' files or commits, and the data.

    Args:
        basis: its surroundings.
        spec: what was wanted.
        model: what was made.
        beside: by name, the models that were made beside it.
    """
    specs = companion_specs(spec)
    own = {name: _completed(basis.beside[name], specs[name], one) for name, one in beside.items()}
    return _completed(basis, spec, model).model_copy(update={"beside": own})


def _completed(basis: Fingerprint, spec: ModelSpec, model: CompiledModel) -> Fingerprint:
    """As `completed`, of one model."""
    source, data = model.source, model.data.record if model.data is not None else None
    record = source.record
    found: dict[str, Any] = {}
    if record.revision is not None:
        found = {"revision": record.revision, "hub_id": record.repository}
    elif not spec.random_weights:
        beside = [path for path in source.files if record.scheme == "onnx" and path != Path(record.location)]
        names = tuple(Path(os.path.relpath(path, source.folder)).as_posix() for path in beside)
        found = {"source": record.digest, "weights": names}
    if spec.data is not None and spec.data.dataset and data is not None:
        repo = spec.data.dataset.partition("@")[0]
        is_copy = known_commit(repo, CONVERTED, of="dataset") == data.revision
        found["data"] = f"{_CONVERTED if is_copy else ''}{data.revision}"
    elif spec.data is not None and spec.data.path and data is not None:
        found["data"] = data.digest
    return basis.model_copy(update=found)


def target_digest(name: str) -> str:
    """What a target is, without the words about it.

    Raises:
        EngineError: there is no such target, or its file has problems.
    """
    return _target_digest(name, _identity(name))


def describe_destination(destination: Destination, relative_to: Path) -> str:
    """A destination, and what is to stand there, as a person may read it: the same text for the same."""
    place = destination.to.rstrip("/") if destination.is_s3 else str((relative_to / destination.to).absolute())
    at = f" at {destination.endpoint_url}" if destination.endpoint_url else ""
    named = f" as {', '.join(destination.aliases)}" if destination.aliases != (CURRENT,) else ""
    return f"{place}{at}{named}{', with a view' if destination.view else ''}"


def _deciding(spec: ModelSpec, relative_to: Path, digester: Digester) -> dict[str, Any]:
    """The values of a spec that decide its result; files of a person's own that it names count by their content."""
    values = spec.model_dump(mode="json", exclude=NO_SAY | {key for key in _OF_ENGINES if key != spec.engine})
    if spec.source_override is not None and spec.source_override.is_tracked:
        values["source"] = spec.source_override.replaces
    for key, silent in _NO_SAY_IN.items():
        if values.get(key) is not None:
            values[key] = {name: value for name, value in values[key].items() if name not in silent}
    if spec.pipeline is not None and spec.pipeline.script:
        values["pipeline"]["script"] = _content(relative_to / spec.pipeline.script, digester)
    if spec.triton != _NO_OPTIONS:
        named = spec.triton.with_files(lambda _, path: _content(relative_to / path, digester))
        values["triton"] = named.model_dump(mode="json")
    if "tensorrt" in values and spec.tensorrt.plugins:
        values["tensorrt"]["plugins"] = [_content(relative_to / one, digester) for one in spec.tensorrt.plugins]
    return values


def _content(path: Path, digester: Digester) -> str:
    """The name of a file and a digest of it; what is wrong with one that is not there, the step says that needs it."""
    try:
        return f"{path.name} {digester.file(path, foreign=True)[:_DIGEST_LETTERS]}"
    except OSError as error:
        return f"{path.name}: {error.strerror}"


def _own_files(spec: ModelSpec, reference: SourceReference, weights: Sequence[str], digester: Digester) -> str:
    """The digest of a person's own model, as the first step of a compile computes it.

    Of a model whose weights are drawn, those of the person's own do not count.

    Raises:
        SourceError: there is none, or it cannot be read.
    """
    place = reference.full_path
    assert place is not None
    if reference.scheme == "onnx":
        # Those that are gone are a difference; whether the graph still needs them, the compile says.
        beside = [place.parent / name for name in weights]
        folder, paths = place.parent, [place, *(path for path in beside if path.is_file())]
    else:
        folder, paths = place, model_paths(place, spec)
    if spec.random_weights:
        paths = described(paths)
    try:
        return digest_of_files(digester.entries(folder, paths, foreign=True))
    except OSError as error:
        raise SourceError(f"cannot read {error.filename}: {error.strerror}", remedy="put it back") from error


def _known_data(known: Fingerprint | None, spec: DataSpec) -> str:
    """The commit of the same data set as before."""
    before = (known.spec.get("data") or {}) if known is not None else {}
    return known.data if known is not None and before.get("dataset") == spec.dataset else ""


def _data(spec: DataSpec, relative_to: Path, digester: Digester, hub: Hub, known: str) -> str:
    """The digest of data files, or the commit of a data set of the hub.

    Raises:
        PlansmithError: there are none, or they cannot be read.
    """
    if not spec.dataset:
        return find_data(spec, relative_to=relative_to, digester=digester, offline=True).digest
    repo, _, revision = spec.dataset.partition("@")
    if not revision and known.startswith(_CONVERTED):
        return f"{_CONVERTED}{hub.commit(repo, CONVERTED, known.removeprefix(_CONVERTED), of='dataset')}"
    return hub.commit(repo, revision or None, known, of="dataset")


def _entry_point(name: str, relative_to: Path, digester: Digester) -> str:
    """The module of a function that yields the data; what that reads in its turn, only a run of it would tell."""
    if not name:
        return ""
    module = name.partition(":")[0].replace(".", "/")
    for path in (relative_to / f"{module}.py", relative_to / module / "__init__.py"):
        if path.is_file():
            return _content(path, digester)
    return ""  # installed, and not beside the spec


def _identity(target: str) -> tuple[int, ...]:
    """Tells one content of a target's own file from another; those of plansmith's stay as they are."""
    try:
        stat = Path(target).stat() if is_target_file(target) else None
    except OSError:
        return (-1,)
    return () if stat is None else (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=256)
def _target_digest(name: str, identity: tuple[int, ...]) -> str:
    """As `target_digest`, of a file as it is now."""
    del identity
    return digest_of(load_target(name).model_dump(mode="json", exclude=_WORDS_OF_A_TARGET))
