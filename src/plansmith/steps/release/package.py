"""Package step: writes the release folder with config.pbtxt, its accompanying files and the model files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.python_backend.generation_parameters import GENERATES, STREAMS
from plansmith.config.targets import Target
from plansmith.config.triton import TritonOptions
from plansmith.errors import EngineError, UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import Device, OnnxModel
from plansmith.records.pipeline import MODEL_PART, Script
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Package, PackedEnvironment
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.release.environment import Packer, WantedEnvironment
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.triton.config import model_config, plan_config
from plansmith.triton.config.ensemble import Branch, chains_of, member_folder, part_name, write_ensemble
from plansmith.triton.config.model_config import require_uncached, text_package
from plansmith.triton.config.option_rules import (
    ModelFacts,
    add_profiles,
    chosen_batch,
    facts_of_component,
    require_fitting,
)
from plansmith.triton.config.overrides import (
    Warmup,
    by_place,
    configure,
    hidden_names,
    is_wanted,
    obstacle,
    served_package,
    support_files,
)

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


@dataclass(frozen=True)
class PackageLayout:
    """Package layout of an engine in a release, whatever the spec's configuration options.

    Args:
        package: with the model's own interface and its largest batch.
        placed: the place in the version folder of every file of the engine.
        make: makes the configuration of such a package for a device.
    """

    package: Package
    placed: dict[str, str]
    make: Callable[[Package, Device], pb.ModelConfig]


@dataclass(frozen=True)
class Scripted:
    """User script with its detected outputs, and the NumPy version that it is served with."""

    file: Path
    script: StepResult[Script]
    numpy: str


def build_package(
    stages: StageRunner,
    name: str,
    target: Target,
    options: TritonOptions,
    model: CompiledModel,
    *,
    beside: Mapping[str, CompiledModel] | None = None,
    script: Scripted | None = None,
    environments: Mapping[str, WantedEnvironment] | None = None,
) -> StepResult[Package] | None:
    """Write a model's configuration, and put the engine's files where Triton looks for them.

    Args:
        stages: the compile's steps.
        name: of the model.
        target: what it will be served by.
        options: what the configuration says beyond what the model determines, with the paths of files absolute.
        model: a member of an ensemble where something stands around it, unless it does all by itself.
        beside: by name, the models that the same requests go to.
        script: answers requests by asking the models, in place of all of them being asked.
        environments: what the models and the parts around them bring with them, by part; none of those that leave it to
            the image.

    Raises:
        EngineError: an input or output that Triton cannot carry, a plan that it cannot load, a pipeline around a model
            that does not batch, or a release of which `plansmith check` would say so.
        UsageError: options that do not fit the model, or models that do not answer the same requests.
        EnvironmentFault: the environment cannot be packed.
    """
    device, packer, beside = target.device, Packer(stages, environments or {}), beside or {}
    writer = _Writer(stages, name, device, packer, has_script=script is not None)
    laid = package_layout(name, model)

    def build(out: Path) -> Package:
        require_fitting(options, _facts(laid.package, model.engine.record, device))
        if GENERATES in model.engine.record.options:
            require_uncached(options)
        if not (is_ensemble(model) or beside or script):
            package = writer.model(model, MODEL_PART, options, out)
        else:
            # Which versions are served is said of the ensemble: a member has one.
            own = writer.branch("", model, options.model_copy(update={"version_policy": None}), out)
            branches = [
                own,
                *(writer.branch(item, compiled, TritonOptions(), out) for item, compiled in beside.items()),
            ]
            chains = chains_of(branches, out, device=device, digester=stages.digester, bring=packer.bring)
            if script is None:
                package = write_ensemble(branches, chains, out, options.version_policy)
            else:
                from plansmith.triton.config.script import build_script_package

                package = build_script_package(
                    *(script.file, script.script.record.outputs, branches, chains, out),
                    numpy=script.numpy,
                    policy=options.version_policy,
                    bring=packer.bring,
                )
        frontend = model.pipeline.record.frontend if model.pipeline is not None else ""
        _require_sound(package, out, target, dynamo=frontend == "dynamo")
        return package

    files = support_files(options)
    models = (model, *beside.values())
    parameters = {
        "package": laid.package.model_dump(mode="json"),
        "beside": list(beside),
        "target": target.model_dump(mode="json"),
        "triton": by_place(options).model_dump(mode="json"),
        "files": {place: stages.digester.file(path, foreign=True) for place, path in files.items() if path.is_file()},
        "axes": [{axis: r.model_dump() for axis, r in item.onnx.record.axes.items()} for item in models],
        "environments": packer.parameters,
    }
    if script is not None:  # two scripts may answer the cases alike
        parameters["script"] = [stages.digester.file(script.file, foreign=True), script.numpy]
    steps = [step for item in models for step in (item.engine, item.onnx, item.pipeline)]
    inputs = [step.digest if step is not None else "" for step in steps]
    inputs += [script.script.digest] if script is not None else []
    return stages.stage("package", Package, inputs, parameters, build)


def is_ensemble(model: CompiledModel) -> bool:
    """Whether a model has pipeline parts before or after it."""
    pipeline = model.pipeline
    return pipeline is not None and bool(pipeline.record.before or pipeline.record.after)


def package_layout(name: str, model: CompiledModel) -> PackageLayout:
    """Return the package layout of a model's engine in a release.

    Args:
        name: of the release.
        model: what was made.

    Raises:
        EngineError: an input or output that Triton cannot carry, or a plan that it cannot load.
    """
    engine = model.engine.record
    return _plans(name, engine) if engine.plans else _graph(name, engine, model.onnx)


def largest_batch_of(model: CompiledModel, options: TritonOptions) -> int:
    """Return the largest batch that a model is served with; 0 without batching."""
    return chosen_batch(options, package_layout("", model).package.max_batch_size)


@dataclass(frozen=True)
class _Writer:
    """Writer of a release's models.

    Args:
        stages: told what is left out.
        name: of the release.
        device: what the target's instances run on.
        packer: packs what they bring with them.
        has_script: whether a script asks them.
    """

    stages: StageRunner
    name: str
    device: Device
    packer: Packer
    has_script: bool = False

    def model(self, compiled: CompiledModel, part: str, options: TritonOptions, out: Path) -> Package:
        """Write a model's configuration and files into a folder, as its own release."""
        laid = package_layout(self.name, compiled)
        package, skipped = _write(
            laid, options, self.device, compiled.engine.record, compiled.onnx, out, partial(self.packer.bring, part)
        )
        for reason in skipped:
            self.stages.notice(f"no warm-up {reason}")
        for file, place in laid.placed.items():
            self.stages.digester.link(compiled.engine.folder / file, out / MODEL_FOLDER / place)
        return package

    def branch(self, name: str, compiled: CompiledModel, options: TritonOptions, out: Path) -> Branch:
        """Write a model into its member's folder; what surrounds it is written later."""
        assert compiled.pipeline is not None
        self._require_askable(name, compiled)
        part = part_name(name, MODEL_PART)
        folder = out / member_folder(part)
        folder.mkdir(parents=True)
        package, kind = self.model(compiled, part, options, folder), str(compiled.engine.record.kind)
        return Branch(name, package, kind, compiled.pipeline.record, compiled.pipeline.folder)

    def _require_askable(self, name: str, compiled: CompiledModel) -> None:
        """Check that a companion model answers without streaming, and that no ensemble reads generated text."""
        options = compiled.engine.record.options
        if options.get(STREAMS) == "true":
            raise UsageError(
                f"{name or self.name} streams its text, and beside another model or for a script it is answered whole",
                remedy="leave `stream` out of its `pipeline`",
            )
        if GENERATES in options and not name and not self.has_script:
            raise UsageError(
                f"{self.name} generates text by itself, and answers no requests beside another model without a script",
                remedy="write a `script` that asks both, or make the other model the spec's own",
            )


def _require_sound(package: Package, folder: Path, target: Target, *, dynamo: bool) -> None:
    from plansmith.triton.checker.checker import check_package

    findings = check_package(package, folder, target=target, dynamo=dynamo)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        lines = [f"{finding.place}: {finding.message} ({finding.rule}; {finding.remedy})" for finding in errors]
        raise EngineError(
            "\n  ".join(["Triton would not serve this release as it was meant:", *lines]),
            remedy="change what the spec's `triton` says of it; where that says nothing, please report this",
        )


def _facts(package: Package, engine: Engine, device: Device) -> ModelFacts:
    component = engine.components["model"]
    if GENERATES in engine.options:
        component = component.model_copy(update=dict(package.interface))
    facts = facts_of_component(component, engine.kind, device, package.max_batch_size)
    if engine.build is None:
        return facts
    count = len(engine.build.profiles)
    return replace(facts, profiles=max(1, count), reach=partial(plan_config.largest_batch, engine) if count else None)


def _write(
    laid: PackageLayout,
    options: TritonOptions,
    device: Device,
    engine: Engine,
    onnx: StepResult[OnnxModel],
    out: Path,
    bring: Callable[[pb.ModelConfig, Path], PackedEnvironment | None],
) -> tuple[Package, list[str]]:
    """Write config.pbtxt and the related files; return the release, and what was left out of the warm-up."""
    from plansmith.data.reference import StoredCases

    package = laid.package.model_copy(update={"max_batch_size": chosen_batch(options, laid.package.max_batch_size)})
    config = laid.make(package, device)
    configure(config, by_place(options))
    model_config.leave_inputs_on_gpu(config)
    hidden = hidden_names(options)
    inputs = [tensor for tensor in package.interface.inputs if tensor.name not in hidden]
    add_profiles(config, package.interface.inputs, onnx.record.axes)
    files = support_files(options)
    for place, path in files.items():  # copied, as a person may write to them again
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / place)
    profiles = engine.build.profiles if engine.build is not None else ()
    warmup = Warmup(
        config,
        inputs,
        onnx.record.axes,
        StoredCases(onnx.record.reference.cases, onnx.folder),
        out,
        takes=lambda feed: plan_config.instances_take(config, profiles, feed),
    )
    if is_wanted(options, config, device):
        reason = "it generates text" if GENERATES in engine.options else obstacle(options, config)
        if reason:
            warmup.skipped.append(f"at all, as {reason}; give samples of your own as triton.model_warmup")
        else:
            warmup.add()
    beside = [*files, *warmup.files]
    brought = bring(config, out)
    if brought is not None:
        beside.append(brought.file)
    (out / package.config_file).write_text(model_config.text_of(config))
    decoupled = config.model_transaction_policy.decoupled
    update = {"support_files": tuple(beside), "environment": brought, "decoupled": decoupled}
    return served_package(package, config).model_copy(update=update), warmup.skipped


def _graph(name: str, engine: Engine, onnx: StepResult[OnnxModel]) -> PackageLayout:
    """Return the package of a graph, or of a PyTorch model."""
    component = engine.components["model"]
    placed = {file: (Path(engine.inner_folder) / file).as_posix() for file in component.files}
    package = Package(
        model=name,
        config_file=CONFIG_FILE,
        model_files=tuple(placed.values()),
        max_batch_size=model_config.max_batch_size(component, onnx.record.axes),
        interface=model_config.interface_of(component),
    )
    if GENERATES in engine.options:
        package = text_package(package, engine, onnx.record.axes)
    return PackageLayout(
        package, placed, lambda package, device: model_config.make_config(package, engine.kind, device)
    )


def _plans(name: str, engine: Engine) -> PackageLayout:
    """Return the package of plans."""
    package, files = plan_config.plan_package(name, engine), plan_config.plan_files(engine)
    placed = {plan.file: files[capability] for capability, plan in engine.plans.items()}
    return PackageLayout(package, placed, lambda package, device: plan_config.make_plan_config(package, engine, device))
