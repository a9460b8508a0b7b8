"""Fingerprint of a compile: finds all that decides its result, without doing its work.

Files are hashed through the digester's memo, distributions asked for their versions, the hub only where that is wanted.
What a compile brings here itself (the files of a model, commits, data) is known from the records of its steps; all else
is taken before its first step: what changes meanwhile is another thing at the next look.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from plansmith.config.data import CONVERTED, DataSpec
from plansmith.config.source_reference import FILE_SUFFIXES, SourceReference, is_model_scheme, parse_reference
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import is_target_file, load_target
from plansmith.config.triton import TritonOptions
from plansmith.errors import EngineError, EnvironmentFault, RepositoryError, SourceError
from plansmith.records.destination import CURRENT, Destination
from plansmith.records.model import EngineKind, Precision
from plansmith.records.release import Fingerprint
from plansmith.sources.directory import described
from plansmith.steps.artifacts import CompiledModel, companion_specs
from plansmith.steps.cache import toolchain
from plansmith.steps.fetch import model_paths
from plansmith.system.digest import Digester, digest_of, digest_of_files

CODE_OF = "code of "
"""Begins the name of a step of plansmith's own among the tools."""

GPUS, SERVER = "GPU kinds", "server of the last check"
"""Name what this machine has among the tools."""

STANDING_IN = " in place of Triton's own"
"""Ends the words about a server whose backend is not the real one."""

_Parts = tuple[tuple[str, tuple[str, ...]], ...]
"""Steps, and the names that `toolchain` has for what they do."""

_CHOOSE_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

NO_SAY = {
    *("name", "target", "repository", "artifacts", "shared_cache", "publish", "allow_interface_change", "force"),
    *("load_into", "load_seconds", "tritonserver", "source_override", "isolate"),
}
"""Fields of a spec that say where something is and how to go about it, and what stands elsewhere in a basis."""

_NO_SAY_IN = {
    "data": {"path"},
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


def tools_of(spec: ModelSpec, reference: SourceReference) -> dict[str, str]:
    """Return tool versions by distribution, empty if not installed here; by step, as "code of export", a digest.

    With them, as far as the spec leaves it to the machine: the kinds of GPU that plans are for (`GPUS`), and the Triton
    that checks the release (`SERVER`); empty where there is none.

    Args:
        spec: what is wanted.
        reference: its source.
    """
    versions = dict(_tools(tuple(_parts(spec, reference))))
    if spec.engine is EngineKind.TENSORRT and not spec.tensorrt.gpus:
        versions[GPUS] = _kinds_here(*(os.environ.get(name, "") for name in _CHOOSE_GPUS))
    if spec.check_served:
        versions[SERVER] = _server_here(spec)
    return versions


@cache
def _kinds_here(*_chosen: str) -> str:
    """Return the kinds of GPUs visible to this process, cached as they stay the same during its lifetime."""
    from plansmith.system import gpus
    from plansmith.system.gpu_catalog import kind_of

    try:
        return ", ".join(sorted({kind_of(gpu).name for gpu in gpus.visible_gpus()}))
    except EnvironmentFault:
        return ""  # a compile says what is wrong


def _server_here(spec: ModelSpec) -> str:
    """Return this machine's Triton for the served check, and the backend that it would use."""
    from plansmith.triton.server.runtime import find_serving_runtime

    try:
        runtime = find_serving_runtime(spec.tritonserver, load_target(spec.target), spec.engine)
    except (EnvironmentFault, EngineError):
        return ""  # a compile says what is wrong
    triton = f"Triton {runtime.installation.version}".strip()
    return f"{triton} with {runtime.description}{STANDING_IN}" if runtime.site else f"{triton}, {runtime.description}"


def _parts(spec: ModelSpec, reference: SourceReference) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the steps that affect the result.

    A model's own folder is fetched by looking at it. Whether a graph came lowered is seen in the graph alone: with such
    a one no step lowers it, and its samples and tools are counted all the same. So are those of every kind of model
    that a registry or bucket may have: which one it is, its files tell.
    """
    is_graph, is_python = reference.scheme == "onnx", spec.engine is EngineKind.PYTHON
    is_registered = not is_model_scheme(reference.scheme)
    if is_graph:
        yield "fetch", ("graph_files",)
    elif is_registered:
        yield "fetch", ("in_bucket" if reference.scheme == "s3" else "registered", "graph_files")
    elif spec.random_weights or (reference.scheme == "timm" and reference.path is None):
        yield "fetch", ("fetch",)
    if is_registered and not is_python:
        yield "export", ("export", "import_onnx")
    else:
        yield "export", ("import_onnx" if is_graph else "run_reference" if is_python else "export",)
    lowers = spec.precision is not Precision.FP32 and not is_python
    if spec.data is not None or lowers:
        yield "sample", ("sample",)
    if lowers:
        yield "lower", ("lower",)
    builds_plan = spec.engine is EngineKind.TENSORRT
    ending = "_python" if is_python else ""
    plan_tools = ("plan_graph", "plan_lint", "plan", *(["plan_check"] if spec.tensorrt.check_build else []))
    yield "compile", plan_tools if builds_plan else (f"compile{ending}",)
    yield "validate", ("measure",) if builds_plan else (f"validate{ending}",)
    if spec.pipeline is not None:
        yield "join", ("join",)
        if spec.pipeline.script:
            yield "script", ("script",)
    yield "package", ("package",)
    if spec.check_served:
        yield "check_served", (f"check_served{ending}",)


@cache
def _tools(parts: _Parts) -> dict[str, str]:
    """Return the tools' versions and digests, cached: loaded code does not change during this process."""
    versions: dict[str, str] = {}
    codes: dict[str, str] = {}
    for step, names in parts:
        toolchains = [toolchain.step_toolchain(name) for name in names]
        codes[f"{CODE_OF}{step}"] = digest_of([tools.pop("code") for tools in toolchains])
        for tools in toolchains:
            versions |= tools
    return dict(sorted(versions.items())) | codes


class Hub:
    """Hub revisions: resolves each branch once to its commit.

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
        self._commits: dict[tuple[str, str | None, str], str] = {}
        self._failures: Counter[str] = Counter()
        self._notified_hosts: set[str] = set()

    def commit(self, repo: str, revision: str | None, previous: str, *, of: str = "model") -> str:
        """Return the commit of a branch, tag or commit.

        Args:
            repo: its id.
            revision: main when None.
            previous: the commit as it was, which stands where nobody says otherwise.
            of: "model", "dataset", or REGISTERED: then `repo` is models:/name, and `revision` @alias, a number or
                latest; or IN_BUCKET: then it is the address of a folder or archive.

        Raises:
            SourceError: the hub has no such thing, or it may not be read.
        """
        if not self._ask:
            return previous
        key = (repo, revision, of)
        if key not in self._commits:
            self._commits[key] = self._look(repo, revision, of)
        return self._commits[key] or previous

    def _look(self, repo: str, revision: str | None, of: str) -> str:
        from plansmith.sources.hub import known_commit, newest_commit
        from plansmith.sources.mlflow.model_version import newest_version
        from plansmith.sources.s3 import newest_revision

        is_hub = of not in {REGISTERED, IN_BUCKET}
        host = "hub" if is_hub else of
        if self._failures[host] == _MOST_FAILURES:
            return ""
        try:
            if is_hub:
                version = newest_commit(repo, revision, of=of)
            else:
                version = (newest_version if of == REGISTERED else newest_revision)(repo, revision or "")
        except EnvironmentFault as fault:
            if not fault.transient:  # by somebody's will
                cached = "what the local cache has of the hub counts" if is_hub else "the versions that are known stand"
                if host not in self._notified_hosts:
                    self._notice(f"{fault.message}: {cached}, for all models")
                self._notified_hosts.add(host)
                return known_commit(repo, revision, of=of) if is_hub else ""
            self._failures[host] += 1
            ending = "; it is not asked again" if self._failures[host] == _MOST_FAILURES else ""
            self._notice(f"{fault.message}: the {'commit' if is_hub else 'version'} that is known stands{ending}")
            return ""
        self._failures[host] = 0
        return version


def fingerprint_of(
    spec: ModelSpec,
    *,
    relative_to: Path,
    digester: Digester,
    hub: Hub | None = None,
    previous: Fingerprint | None = None,
) -> Fingerprint:
    """Return the fingerprint of a compile of a spec from current inputs, without a version.

    Args:
        spec: what is wanted.
        relative_to: the folder that paths in it start from.
        digester: hashes files, and remembers them.
        hub: says at which commit its branches are; when None, what is known stands.
        previous: what the newest version was made from. It tells what else only a look into the source would tell:
            the names of the weights beside an ONNX graph, the hub's id of a timm model.

    Raises:
        PlansmithError: the source, the data or the target are not there, or cannot be read.
    """
    hub = hub or Hub(ask=False)
    reference = parse_reference(spec.source, relative_to=relative_to)
    fields: dict[str, Any] = {}
    is_same = previous is not None and previous.spec.get("source") == source_identity(spec, relative_to)
    then = previous if previous is not None and is_same else _NOTHING
    if reference.path is not None:
        fields = {"source": _own_files(spec, reference, then.weights, digester), "weights": then.weights}
    elif not is_model_scheme(reference.scheme):
        of = REGISTERED if reference.scheme == "mlflow" else IN_BUCKET
        version = hub.commit(reference.location, reference.revision, then.revision, of=of)
        fields = {"revision": version, "hub_id": reference.location}
    elif not (spec.random_weights and reference.scheme == "timm"):
        hub_id = reference.location if reference.scheme == "hf" else then.hub_id
        commit = hub.commit(hub_id, reference.revision, then.revision) if hub_id else ""
        fields = {"revision": commit, "hub_id": hub_id}
    if spec.data is not None and not spec.data.entry_point:
        fields["data"] = _data(spec.data, relative_to, digester, hub, _known_data(previous, spec.data))
    noted = previous.beside if previous is not None else {}
    fields["beside"] = {
        name: fingerprint_of(companion, relative_to=relative_to, digester=digester, hub=hub, previous=noted.get(name))
        for name, companion in companion_specs(spec).items()
    }
    return _surroundings(spec, reference, relative_to, digester).model_copy(update=fields)


def source_identity(spec: ModelSpec, relative_to: Path) -> str:
    """Return a source as fingerprints compare it: as the spec has it, but a path by its name alone.

    The path may start from anywhere; what lies there counts by content. A source that an event set stays as it came.

    Args:
        spec: has the source.
        relative_to: the folder that paths in it start from.

    Raises:
        PlansmithError: there is no such folder or file.
    """
    if spec.source_override is not None:
        return spec.source_override.replaces if spec.source_override.is_tracked else spec.source
    reference = parse_reference(spec.source, relative_to=relative_to)
    if reference.path is None:
        return spec.source
    return f"{reference.scheme}:{Path(os.path.normpath(reference.path.absolute())).name}"


def with_overridden_source(spec: ModelSpec, noted: Fingerprint) -> ModelSpec:
    """Return the spec with the source of its newest version's registry event, if that still applies.

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
    """Require that the published version does not come from a later event.

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
    """Return the part of a basis that no compile step finds; arguments and errors as for `fingerprint_of`."""
    beside = {
        name: build_inputs(
            companion,
            parse_reference(companion.source, relative_to=relative_to),
            relative_to=relative_to,
            digester=digester,
        )
        for name, companion in companion_specs(spec).items()
    }
    return _surroundings(spec, reference, relative_to, digester).model_copy(update={"beside": beside})


def _surroundings(spec: ModelSpec, reference: SourceReference, relative_to: Path, digester: Digester) -> Fingerprint:
    """Like `build_inputs`, for the spec's own model only."""
    is_drawn = spec.random_weights and reference.path is not None
    return Fingerprint(
        version=0,
        spec=_deciding(spec, relative_to, digester),
        source=_own_files(spec, reference, (), digester) if is_drawn else "",
        revision="",
        data=_entry_point(spec.data.entry_point, relative_to, digester) if spec.data is not None else "",
        target=target_digest(spec.target),
        tools=tools_of(spec, reference),
        destinations=tuple(describe_destination(destination, relative_to) for destination in spec.publish),
        source_override=spec.source_override,
    )


def completed(
    basis: Fingerprint, spec: ModelSpec, model: CompiledModel, beside: Mapping[str, CompiledModel]
) -> Fingerprint:
    """Complete a basis with the facts that a compile finds: the models' files or commits, and the data.

    Args:
        basis: its surroundings.
        spec: what was wanted.
        model: what was made.
        beside: by name, the models that were made beside it.
    """
    specs = companion_specs(spec)
    own = {name: _completed(basis.beside[name], specs[name], companion) for name, companion in beside.items()}
    return _completed(basis, spec, model).model_copy(update={"beside": own})


def _completed(basis: Fingerprint, spec: ModelSpec, model: CompiledModel) -> Fingerprint:
    """Like `completed`, for one model."""
    source, data = model.source, model.data.record if model.data is not None else None
    record = source.record
    changes: dict[str, Any] = {}
    if record.revision is not None:
        changes = {"revision": record.revision, "hub_id": record.repository}
    elif not spec.random_weights:
        beside = [path for path in source.files if record.scheme == "onnx" and path != Path(record.location)]
        names = tuple(Path(os.path.relpath(path, source.folder)).as_posix() for path in beside)
        changes = {"source": record.digest, "weights": names}
    if spec.data is not None and spec.data.dataset and data is not None:
        from plansmith.sources.hub import known_commit

        repo = spec.data.dataset.partition("@")[0]
        is_copy = known_commit(repo, CONVERTED, of="dataset") == data.revision
        changes["data"] = f"{_CONVERTED if is_copy else ''}{data.revision}"
    elif spec.data is not None and spec.data.path and data is not None:
        changes["data"] = data.digest
    return basis.model_copy(update=changes)


def distributions_of(basis: Fingerprint) -> dict[str, str]:
    """Return the versions of the distributions among a basis' tools, those of companion models included."""
    tools = {name: version for beside in basis.beside.values() for name, version in distributions_of(beside).items()}
    named = {name: version for name, version in basis.tools.items() if not name.startswith(CODE_OF)}
    return tools | {name: version for name, version in named.items() if version and name not in {GPUS, SERVER}}


def target_digest(name: str) -> str:
    """Return the digest of a target, without its descriptive text.

    Raises:
        EngineError: there is no such target, or its file has problems.
    """
    return _target_digest(name, _identity(name))


def describe_destination(destination: Destination, relative_to: Path) -> str:
    """Describe a destination and its planned aliases for users; equal destinations give equal text."""
    place = destination.to.rstrip("/") if destination.is_s3 else str((relative_to / destination.to).absolute())
    at = f" at {destination.endpoint_url}" if destination.endpoint_url else ""
    named = f" as {', '.join(destination.aliases)}" if destination.aliases != (CURRENT,) else ""
    return f"{place}{at}{named}{', with a view' if destination.view else ''}"


def _deciding(spec: ModelSpec, relative_to: Path, digester: Digester) -> dict[str, Any]:
    """Return the spec values that affect the result; user files that it names count by content."""
    values = spec.model_dump(mode="json", exclude=NO_SAY | {key for key in _OF_ENGINES if key != spec.engine})
    values["source"] = source_identity(spec, relative_to)
    for name, companion in companion_specs(spec).items():
        own = values["pipeline"]["models"][name]
        own["source"] = source_identity(companion.model_copy(update={"source_override": None}), relative_to)
        if own["data"] is not None:
            del own["data"]["path"]
    for key, silent in _NO_SAY_IN.items():
        if values.get(key) is not None:
            values[key] = {name: value for name, value in values[key].items() if name not in silent}
    if spec.pipeline is not None and spec.pipeline.script:
        values["pipeline"]["script"] = _content(relative_to / spec.pipeline.script, digester)
    if spec.triton != _NO_OPTIONS:
        named = spec.triton.with_files(lambda _, path: _content(relative_to / path, digester))
        values["triton"] = named.model_dump(mode="json")
    if "tensorrt" in values and spec.tensorrt.plugins:
        values["tensorrt"]["plugins"] = [_content(relative_to / plugin, digester) for plugin in spec.tensorrt.plugins]
    return values


def _content(path: Path, digester: Digester) -> str:
    """Return a file's name and digest; a missing file is reported by the step that needs it."""
    try:
        return f"{path.name} {digester.file(path, foreign=True)[:_DIGEST_LETTERS]}"
    except OSError as error:
        return f"{path.name}: {error.strerror}"


def _own_files(spec: ModelSpec, reference: SourceReference, weights: Sequence[str], digester: Digester) -> str:
    """Return the digest of a user's own model, computed as in the first step of a compile.

    Of a model whose weights are drawn, those of the person's own do not count.

    Raises:
        SourceError: there is none, or it cannot be read.
    """
    place = reference.full_path
    assert place is not None
    if reference.scheme in FILE_SUFFIXES:
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


def _known_data(previous: Fingerprint | None, spec: DataSpec) -> str:
    """Return the recorded commit if the spec still names the same data set; else empty."""
    before = (previous.spec.get("data") or {}) if previous is not None else {}
    return previous.data if previous is not None and before.get("dataset") == spec.dataset else ""


def _data(spec: DataSpec, relative_to: Path, digester: Digester, hub: Hub, previous: str) -> str:
    """Return the digest of data files, or the commit of a hub data set.

    Raises:
        PlansmithError: there are none, or they cannot be read.
    """
    from plansmith.sources.dataset import find_data

    if not spec.dataset:
        return find_data(spec, relative_to=relative_to, digester=digester, offline=True).digest
    repo, _, revision = spec.dataset.partition("@")
    if not revision and previous.startswith(_CONVERTED):
        return f"{_CONVERTED}{hub.commit(repo, CONVERTED, previous.removeprefix(_CONVERTED), of='dataset')}"
    return hub.commit(repo, revision or None, previous, of="dataset")


def _entry_point(name: str, relative_to: Path, digester: Digester) -> str:
    """Return the module of a data function; what it reads itself is only known by running it."""
    if not name:
        return ""
    module = name.partition(":")[0].replace(".", "/")
    for path in (relative_to / f"{module}.py", relative_to / module / "__init__.py"):
        if path.is_file():
            return _content(path, digester)
    return ""  # installed, and not beside the spec


def _identity(target: str) -> tuple[int, ...]:
    """Return the identity of a custom target file's content; plansmith's own targets do not change."""
    try:
        stat = Path(target).stat() if is_target_file(target) else None
    except OSError:
        return (-1,)
    return () if stat is None else (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=256)
def _target_digest(name: str, identity: tuple[int, ...]) -> str:
    """Like `target_digest`, for the current state of a file."""
    del identity
    return digest_of(load_target(name).model_dump(mode="json", exclude=_WORDS_OF_A_TARGET))
