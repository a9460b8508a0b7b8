"""Compiles each engine and precision of a search once, into a repository of its own that nobody serves from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import Target, load_target
from plansmith.copies.release import CopiedRelease, ModelFolder
from plansmith.copies.sending import require_sendable
from plansmith.errors import EngineError, PlansmithError
from plansmith.records.model import Device, EngineKind, Precision
from plansmith.records.release import Manifest
from plansmith.sagemaker.signatures import model_from_release
from plansmith.steps.runner import Listener
from plansmith.triton.repository.release import interface_differences
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.control.client import ModelControlClient
from plansmith.triton.server.installation import find_installation, require_device
from plansmith.triton.server.runtime import find_serving_runtime
from plansmith.tuning.configuration import Build, Configuration
from plansmith.tuning.tuned_model import TunedModel, build_of, configuration_of, digest_of_build, model_config

_BUILDS_FOLDER = "builds"
_MAX_REASONS = 3
_CONTROL_SECONDS = 30.0


@dataclass(frozen=True)
class CompiledBuild:
    """A release from which all configurations of a build are served.

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
        """The models of the release: members of an ensemble or script before itself.

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
    """Compiles the builds of a search.

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
        """The model as its spec has it, and how it is served now.

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
    """Engines and precisions to try.

    Args:
        target: of the model.
        engines: to try; when empty, all: TensorRT is left out with a reason where it cannot be served.
        precisions: to try; by engine and device when empty.
    """
    kinds = [EngineKind(engine) for engine in engines] or list(EngineKind)
    return [
        Build(engine=kind, precision=precision)
        for kind in kinds
        for precision in ([Precision(one) for one in precisions] or _default_precisions(kind, target))
    ]


def require_any(requested: Sequence[Build], left_out: Mapping[str, str]) -> None:
    """Check that a requested build can be served: the current configuration alone is no search.

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
    """Check that this machine serves an engine on the device of the model's target; or that the running server loads.

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
    """A message in one line: of several problems the first few."""
    head, *problems = [line.strip() for line in error.message.splitlines() if line.strip()]
    if not problems or not head.endswith(":"):
        return head
    more = [f"and {len(problems) - _MAX_REASONS} more"] if len(problems) > _MAX_REASONS else []
    return f"{head} {'; '.join([*problems[:_MAX_REASONS], *more])}"


def _scratch_spec(spec: ModelSpec, name: str, repository: Path) -> ModelSpec:
    """The same spec for a repository of the search: published nowhere else, with the largest batch that it takes.

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
