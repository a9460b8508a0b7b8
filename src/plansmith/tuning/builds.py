"""Builds of a search: compiles each engine and precision once, into a separate repository that is not served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.loader import name_of, read_specs
from plansmith.config.spec import ModelSpec, escaped, make_spec
from plansmith.config.targets import Target, load_target
from plansmith.copies.release import CopiedRelease, ModelFolder, require_sendable
from plansmith.errors import EngineError, PlansmithError, RepositoryError, UsageError
from plansmith.records.model import Device, EngineKind, Precision
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest, PublishedVersion
from plansmith.sagemaker.signatures import model_from_release
from plansmith.steps.runner import Listener
from plansmith.system.digest import digest_of
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.repository.release import interface_differences
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.control import ModelControlClient
from plansmith.triton.server.installation import find_installation, require_device
from plansmith.triton.server.runtime import find_serving_runtime
from plansmith.tuning.configuration import Build, Configuration, read_configuration

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


_SPEC_FILE = "spec.yaml"
_ARTIFACTS = "artifacts"
_TUNING_FOLDER = "tuning"

_BUILDS_FOLDER = "builds"
_MAX_REASONS = 3
_CONTROL_SECONDS = 30.0
_TRITON = "triton"


@dataclass(frozen=True)
class TunedModel:
    """A model to tune.

    Attributes:
        name: in Triton.
        spec: what it is compiled from.
        base: folder that paths in the spec are relative to.
        release: the published release that is served now; None where a spec was given.
        url: of a running Triton that serves the trials; empty for one of this machine, started for each.
    """

    name: str
    spec: ModelSpec
    base: Path
    release: Path | None = None
    url: str = ""

    @property
    def folder(self) -> Path:
        """The folder for the results and history of the model's searches."""
        return (Path(self.spec.artifacts) / _TUNING_FOLDER / self.name).absolute()


def find_model(name: str, repository: Path, *, picked: str = "", target: str = "") -> TunedModel:
    """Return the model of a command line argument: a SPEC.yaml, or MODEL[@VERSION] of a repository.

    Args:
        name: as it was typed.
        repository: of the releases.
        picked: which model of a spec with several.
        target: which target of a spec with several.

    Raises:
        UsageError: the spec is wrong or has several models or targets of which none is picked; or one is picked of a
            release.
        RepositoryError: there is no such release, or it does not say what it was made from.
    """
    models = find_models(name, repository, picked=(picked,) if picked else (), target=target)
    if len({model.name for model in models}) > 1:
        raise UsageError(
            f"{name} has {len(models)} models, and one is tuned at a time", remedy=f"--model {models[0].name}"
        )
    return models[0]


def find_models(name: str, repository: Path, *, picked: Sequence[str] = (), target: str = "") -> list[TunedModel]:
    """Return the models of a command line argument: those of a SPEC.yaml, or MODEL[@VERSION] of a repository.

    Args:
        name: as it was typed.
        repository: of the releases.
        picked: which models of a spec with several; all when empty.
        target: which target of a spec with several.

    Raises:
        UsageError: the spec is wrong, or has a model for several targets of which none is picked; or one is picked of a
            release.
        RepositoryError: there is no such release, or it does not say what it was made from.
    """
    if name.endswith((".yaml", ".yml")):
        base = Path(name).absolute().parent
        specs = _matching_specs(name, picked, target)
        return [TunedModel(spec.name or name_of(spec.model_dump(), base), spec, base) for spec in specs]
    if picked or target:
        raise UsageError(
            f"{name} is a release, which has one model and one target",
            remedy="leave out --model and --target, or name the SPEC.yaml",
        )
    opened = ModelRepository(repository)
    model, version = opened.find(name)
    release = opened.release(model, version)
    if not (release / _SPEC_FILE).is_file():
        raise RepositoryError(
            f"{release} has no {_SPEC_FILE}, so that nothing else can be compiled of the model",
            remedy="name the SPEC.yaml that it was compiled from",
        )
    folders = {"repository": str(opened.root)}
    (named,) = read_specs(release / _SPEC_FILE, {"name": model}).models
    if Path(named.spec.repository).resolve() != opened.root.resolve():  # it was compiled elsewhere
        folders["artifacts"] = str(Path(_ARTIFACTS).absolute())
    return [TunedModel(model, named.spec.model_copy(update=folders), release, release)]


def _matching_specs(name: str, picked: Sequence[str], target: str) -> list[ModelSpec]:
    models = read_specs(Path(name), {}, tuple(picked)).models
    matching = [entry for entry in models if target in {"", entry.target, entry.spec.target}]
    if not matching:
        raise UsageError(
            f"{name} has nothing for the target {target}",
            remedy=f"--target {models[0].target or models[0].spec.target}",
        )
    targets = list(dict.fromkeys(entry.target or entry.spec.target for entry in matching))
    if len(targets) > 1:
        raise UsageError(
            f"{name} is for {len(targets)} targets, and one is served at a time", remedy=f"--target {targets[0]}"
        )
    return [entry.spec for entry in matching]


def model_config(release: Path, manifest: Manifest) -> pb.ModelConfig:
    """Read the config.pbtxt of the model itself, which may be a member of an ensemble."""
    member = next((candidate for candidate in manifest.package.members if candidate.part == MODEL_PART), None)
    folder = release / member.folder if member is not None else release
    config: pb.ModelConfig = parse_config((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    return config


def build_of(manifest: Manifest) -> Build:
    """Return the engine and precision of a release."""
    return Build(engine=manifest.engine.kind, precision=manifest.engine.precision)


def configuration_of(release: Path, manifest: Manifest) -> Configuration:
    """Return the serving configuration of a release.

    Raises:
        UsageError: as `read_configuration`.
    """
    return read_configuration(model_config(release, manifest), build_of(manifest)).normalized


def digest_of_build(release: Path, manifest: Manifest) -> str:
    """Return a digest of everything served of a release except what a search changes."""
    config = model_config(release, manifest)
    Configuration(build=build_of(manifest), max_batch_size=config.max_batch_size).apply_to(config)
    config.name = ""
    files = [(file.path, file.sha256) for file in manifest.files if MODEL_FOLDER in Path(file.path).parts[:-1]]
    return digest_of([sorted(files), text_of(config)])


@dataclass(frozen=True)
class CompiledBuild:
    """A compiled build: a release from which all its configurations are served.

    Attributes:
        build: engine and precision.
        repository: of the release.
        manifest: of the release.
        release: its folder.
        digest: of its files.
        largest_batch: that it takes; 0 where Triton does not batch it.
    """

    build: Build
    repository: Path
    manifest: Manifest
    release: Path
    digest: str
    largest_batch: int

    def copy(self, device: Device, name: str = "") -> tuple[ModelFolder, ...]:
        """Return the models of the release, with members of an ensemble or script first.

        Args:
            device: on which they are served.
            name: what to call it; as the release when empty.

        Raises:
            RepositoryError: the release is damaged.
        """
        released = model_from_release(ModelRepository(self.repository), f"{self.manifest.name}@{self.manifest.version}")
        return CopiedRelease(released, device).copy(name or self.manifest.name)


@dataclass
class BuildCompiler:
    """Build compiler: compiles the builds of a search.

    Args:
        model: to tune.
        listener: told of the steps of compiles.
        announce: called with the build that is compiled; None for the model as its spec has it.

    Attributes:
        compiled: by label of the build.
        left_out: by label of the build, why it is not tried.
    """

    model: TunedModel
    listener: Listener | None = None
    announce: Callable[[Build | None], None] = lambda _: None
    compiled: dict[str, CompiledBuild] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def compile_current(self) -> tuple[CompiledBuild, Configuration]:
        """Compile the model as its spec defines it, and return the build with its current configuration.

        Raises:
            PlansmithError: located at the step that failed.
        """
        self.announce(None)
        spec = self.model.spec
        compiled = self._compile(spec, "current")
        self.compiled[compiled.build.label] = compiled
        if self.model.release is not None:
            manifest = ModelRepository(Path(spec.repository)).manifest(self.model.name, int(self.model.release.name))
            return compiled, configuration_of(self.model.release, manifest)
        current = configuration_of(compiled.release, compiled.manifest)
        if spec.triton.max_batch_size is not None:
            current = current.model_copy(update={"max_batch_size": spec.triton.max_batch_size})
        if spec.triton.dynamic_batching:
            preferred = tuple(spec.triton.dynamic_batching.preferred_batch_size)
            current = current.model_copy(update={"preferred_batch_sizes": preferred})
        return compiled, current.normalized

    def compile(self, builds: Sequence[Build]) -> None:
        """Compile further builds; one that fails, or is not accurate enough, is left out with the reason."""
        reference = next(iter(self.compiled.values()))
        for build in builds:
            if build.label in self.compiled:
                continue
            self.announce(build)
            spec = self.model.spec.model_copy(update={"engine": build.engine, "precision": build.precision})
            try:
                require_servable(self.model, build.engine)
                compiled = self._compile(spec, build.label.replace(" ", "-"))
            except PlansmithError as error:
                self.left_out[build.label] = f"{error.step + ': ' if error.step else ''}{_reason(error)}"
                continue
            differences = interface_differences(
                reference.manifest.package.interface, compiled.manifest.package.interface
            )
            if differences:
                self.left_out[build.label] = f"its inputs or outputs differ: {'; '.join(differences)}"
            else:
                self.compiled[build.label] = compiled

    def _compile(self, spec: ModelSpec, name: str) -> CompiledBuild:
        from plansmith.steps.compilation import Compilation

        repository = self.model.folder / _BUILDS_FOLDER / name / "repository"
        scratch = _scratch_spec(spec, self.model.name, repository)
        with Compilation(scratch, relative_to=self.model.base, listener=self.listener) as compilation:
            published, manifest = compilation.run()
        release = Path(published.release)
        compiled = CompiledBuild(
            build=build_of(manifest),
            repository=repository,
            manifest=manifest,
            release=release,
            digest=digest_of_build(release, manifest),
            largest_batch=model_config(release, manifest).max_batch_size,
        )
        if self.model.url:
            for model in compiled.copy("cpu"):
                require_sendable(model)
        return compiled


def requested_builds(target: Target, engines: Sequence[str], precisions: Sequence[str]) -> list[Build]:
    """Return the engines and precisions to try.

    Args:
        target: of the model.
        engines: to try; when empty, all: TensorRT is left out with a reason where it cannot be served.
        precisions: to try; by engine and device when empty.
    """
    kinds = [EngineKind(engine) for engine in engines] or list(EngineKind)
    return [
        Build(engine=kind, precision=precision)
        for kind in kinds
        for precision in ([Precision(name) for name in precisions] or _default_precisions(kind, target))
    ]


def require_any(requested: Sequence[Build], left_out: Mapping[str, str]) -> None:
    """Require that a requested build can be served, as the current configuration alone is no search.

    Raises:
        EngineError: none can, with the reasons.
    """
    if not all(build.label in left_out for build in requested):
        return
    labels: dict[str, list[str]] = {}
    for build in requested:
        labels.setdefault(left_out[build.label], []).append(build.label)
    raise EngineError(
        "\n  ".join(
            ["none of the requested builds can be served:", *(f"{', '.join(of)}: {why}" for why, of in labels.items())]
        ),
        remedy="choose other --engines or --precisions, or leave them out",
    )


def require_servable(model: TunedModel, engine: EngineKind) -> None:
    """Require that this machine, or the running server, can serve an engine on the device of the model's target.

    Raises:
        EnvironmentFault: it has no such GPU or backend; the running server cannot be asked, or loads no models.
        EngineError: nothing says which runtime the target has.
    """
    if model.url:
        ModelControlClient(model.url, load_seconds=_CONTROL_SECONDS).require_control()
        return
    target = load_target(model.spec.target)
    if engine is not EngineKind.TENSORRT:
        server = model.spec.tritonserver
        require_device(find_installation(Path(server) if server else None), target, engine)
    find_serving_runtime(model.spec.tritonserver, target, engine)


def _default_precisions(kind: EngineKind, target: Target) -> list[Precision]:
    if kind is EngineKind.PYTHON:
        return [Precision.FP32]
    if kind is EngineKind.TENSORRT:
        return [Precision.FP32, Precision.FP16, Precision.INT8]
    return [Precision.FP32, Precision.FP16 if target.device == "gpu" else Precision.INT8]


def _reason(error: PlansmithError) -> str:
    """The message in one line, with only the first few of several problems."""
    head, *problems = [line.strip() for line in error.message.splitlines() if line.strip()]
    if not problems or not head.endswith(":"):
        return head
    more = [f"and {len(problems) - _MAX_REASONS} more"] if len(problems) > _MAX_REASONS else []
    return f"{head} {'; '.join([*problems[:_MAX_REASONS], *more])}"


def _scratch_spec(spec: ModelSpec, name: str, repository: Path) -> ModelSpec:
    """The same spec for a scratch repository of the search: not published elsewhere, with the largest possible batch.

    The trials serve it anyway, so that the served check is left out.
    """
    batching = spec.triton.dynamic_batching
    if batching is not False:
        batching = batching.model_copy(update={"preferred_batch_size": ()})
    triton = spec.triton.model_copy(update={"max_batch_size": None, "dynamic_batching": batching})
    return spec.model_copy(
        update={
            "name": name,
            "repository": str(repository),
            "publish": (),
            "load_into": (),
            "check_served": False,
            "force": False,
            "allow_interface_change": True,
            "triton": triton,
        }
    )


def spec_changes(spec: ModelSpec, best: Configuration, current: Configuration) -> dict[str, Any]:
    """Return the changed keys of a spec, with complete values; settings outside the search space are kept.

    Args:
        spec: of the model.
        best: the configuration to serve.
        current: the one that the spec makes.
    """
    changes = best.spec_changes(current)
    own = spec.triton.model_dump(mode="json", exclude_defaults=True)
    changed = changes.get(_TRITON, {})
    triton: dict[str, Any] = {key: value for key, value in changed.items() if key == "max_batch_size"}
    if "dynamic_batching" in changed:
        triton["dynamic_batching"] = _merge_batching(own.get("dynamic_batching"), changed["dynamic_batching"])
    if "instance_group" in changed:
        first: dict[str, Any] = next(iter(own.get("instance_group", [])), {})
        triton["instance_group"] = [first | changed["instance_group"][0]]
    if "parameters" in changed:
        merged = own.get("parameters", {}) | changed["parameters"]
        triton["parameters"] = {key: value for key, value in merged.items() if value is not None}
    return {key: value for key, value in changes.items() if key != _TRITON} | ({_TRITON: triton} if triton else {})


def changed_spec(spec: ModelSpec, changes: Mapping[str, Any]) -> ModelSpec:
    """Return a spec with changes; below `triton` only the named keys are replaced.

    Raises:
        UsageError: they do not go together.
    """
    values = spec.model_dump(mode="json")
    values |= {key: value for key, value in changes.items() if key != _TRITON}
    values[_TRITON] |= changes.get(_TRITON, {})
    return make_spec(values)


def format_changes(changes: Mapping[str, Any]) -> str:
    """Format the changes as lines of a spec; empty if there are none."""
    import yaml

    return yaml.safe_dump(escaped(dict(changes)), sort_keys=False, allow_unicode=True) if changes else ""


def publish_changes(
    model: TunedModel, changes: Mapping[str, Any], listener: Listener | None = None
) -> tuple[PublishedVersion, Manifest]:
    """Compile the model with the changed spec, through all gates, and publish it as the spec says.

    Raises:
        PlansmithError: located at the step that failed; nothing was published.
    """
    from plansmith.steps.compilation import Compilation

    spec = changed_spec(model.spec, changes).model_copy(update={"name": model.name})
    with Compilation(spec, relative_to=model.base, listener=listener) as compilation:
        return compilation.run()


def _merge_batching(own: Any, changed: Any) -> Any:
    if changed is False or not isinstance(own, dict):
        return changed
    return {key: value for key, value in own.items() if key != "preferred_batch_size"} | changed
