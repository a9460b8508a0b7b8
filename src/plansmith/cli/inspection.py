"""Inspection of a file or folder that plansmith made or can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.attestations.bom import describe_bom
from plansmith.attestations.slsa import describe_provenance
from plansmith.compilers.trt.plan_header import read_header
from plansmith.errors import UsageError, first_line
from plansmith.records.engine import Engine
from plansmith.records.model import Component, DataSet, LoweredModel, SourceModel, Tensor
from plansmith.records.release import (
    BOM_FILE,
    LOWERED_FILE,
    MANIFEST_FILE,
    PROVENANCE_FILE,
    LoweredGraph,
    Manifest,
    ReleasedModel,
)
from plansmith.records.validation import ValidationReport
from plansmith.report.text import (
    check_lines,
    describe_held_out,
    doubts,
    evaluation_lines,
    format_cosine,
    format_speedup,
    isolation_lines,
    pipeline_lines,
    plan_lines,
    recipe_lines,
    script_lines,
)
from plansmith.triton.repository.release import read_manifest
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.repository.signature import local_signer

_MOST_REASONS = 8
_PLAN_SUFFIXES = (".plan", ".engine", ".trt")
_ATTESTATIONS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    ".intoto.json": ("provenance", describe_provenance),
    ".cdx.json": ("bill of materials", describe_bom),
}
"""What files with these endings are, and what reads them."""


def explain(path: Path) -> dict[str, Any]:
    """Return the facts of a file, release or repository, as nested JSON values.

    Files: a manifest, ONNX file, plan, lowered graph, provenance or bill of materials.

    Raises:
        UsageError: the path is none of these, or a record is damaged.
        RepositoryError: a damaged manifest.
        EngineError: a file named as a plan that is none.
    """
    release = path.parent if path.name == MANIFEST_FILE else path
    if (release / MANIFEST_FILE).is_file():
        return _release(read_manifest(release), release)
    lowered = path / LOWERED_FILE if path.is_dir() else path
    if lowered.name == LOWERED_FILE and lowered.is_file():
        return _lowered_graph(lowered)
    attestation = next((kind for ending, kind in _ATTESTATIONS.items() if path.name.endswith(ending)), None)
    if attestation is not None and path.is_file():
        name, describe = attestation
        return {name: str(path), **_attestation(path, name, describe)}
    if path.is_file() and path.suffix == ".onnx":
        return _graph(path)
    if path.is_file() and path.suffix in _PLAN_SUFFIXES:
        return {"plan": str(path), "TensorRT": read_header(path).tensorrt, "bytes": path.stat().st_size}
    if path.is_dir() and (repository := ModelRepository(path)).target() is not None:
        return _repository(repository)
    raise UsageError(
        f"{path} is no release, repository, lowered graph, ONNX file, plan, provenance or bill of materials",
        remedy=f"name one, for example artifacts/repository; for a model by its name: plansmith show {path}"
        if not path.exists() and len(path.parts) == 1
        else "name one, for example artifacts/repository",
    )


def _release(manifest: Manifest, folder: Path) -> dict[str, Any]:
    validation, served = manifest.validation, manifest.served
    return {
        "release": str(folder),
        "model": f"{manifest.name}, version {manifest.version}",
        "compiled": f"{manifest.created} by plansmith {manifest.plansmith}",
        "signature": _signature(folder),
        **_attestations(folder),
        "target": manifest.target,
        "source": _source(manifest.source),
        **({"isolation": isolation} if (isolation := list(isolation_lines(manifest.onnx, manifest.data))) else {}),
        "export": {
            "exporter": manifest.onnx.describe_exporter,
            "refused": [f"{a.exporter}: {a.problem}" for a in manifest.onnx.attempts if a.problem],
            "axes": {name: f"{r.min} : {r.opt} : {r.max}" for name, r in manifest.onnx.axes.items()},
            **({"fixed": [fixed.explanation for fixed in manifest.onnx.fixed]} if manifest.onnx.fixed else {}),
            **({"tied": [tied.explanation for tied in manifest.onnx.tied]} if manifest.onnx.tied else {}),
        },
        "data": _data(manifest.data),
        "engine": f"{manifest.engine.kind}, {manifest.engine.precision}",
        **_plans(manifest.engine, validation),
        "lowering": _lowering(manifest.lowered),
        "interface": _interface(manifest.engine.components["model"]),
        **_pipeline(manifest),
        "max_batch_size": manifest.package.max_batch_size,
        "gate": _gate(validation),
        "served": "not checked"
        if served is None
        else f"{served.backend} backend ({served.backend_runtime}) with {served.device.upper()} instances"
        f" in Triton {served.server_version},"
        f" {served.requests} requests, median {served.median_seconds * 1000:.0f} ms",
        "files": [f"{f.path}  {f.bytes:,} bytes  sha256 {f.sha256[:12]}" for f in manifest.files],
        "seconds": {s.name: "cached" if s.cached else s.seconds for s in manifest.steps},
    }


def _signature(folder: Path) -> str:
    signer = local_signer(folder)
    return f"by {signer}; not checked here, but by plansmith verify --require-signature" if signer else "not signed"


def _attestations(folder: Path) -> dict[str, str]:
    """Describe a release's provenance and bill of materials, each in a line."""
    lines = {}
    for file, (name, describe) in zip((PROVENANCE_FILE, BOM_FILE), _ATTESTATIONS.values(), strict=True):
        try:
            facts = _attestation(folder / file, name, describe)
        except UsageError as error:
            lines[name] = error.message
            continue
        if not facts:
            lines[name] = "none: compiled before plansmith wrote it"
        elif file == PROVENANCE_FILE:
            lines[name] = (
                f"{next(iter(facts['made from']), 'unknown')}; by {facts['builder']}, finished {facts['finished']}"
            )
        else:
            counts = ", ".join(f"{count} {kind}" for kind, count in facts["components"].items())
            lines[name] = f"{facts['format']}, {len(facts['listed'])} components: {counts}"
    return lines


def _attestation(path: Path, name: str, describe: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Read an attestation; empty if there is no such file.

    Raises:
        UsageError: it is damaged.
    """
    try:
        return describe(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is no {name} that can be read: {first_line(error)}", remedy="name one that a release holds"
        ) from error


def _lowered_graph(path: Path) -> dict[str, Any]:
    """Return the record that `plansmith lower` wrote with its graph."""
    try:
        record = LoweredGraph.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is no record of a lowered graph: {first_line(error)}", remedy="lower the model again"
        ) from error
    lowered = record.lowered
    return {
        "lowered graph": str(path.parent),
        "model": record.name,
        "made for": str(lowered.recipe.engine) if lowered.recipe else "any engine",
        "precision": str(lowered.precision),
        "data": _data(record.data),
        "lowering": _lowering(lowered),
        "interface": _interface(lowered.components["model"]),
        "gate": _gate(record.validation),
        **({"build check": list(check_lines(record.build_check))} if record.build_check else {}),
        "files": [
            *(file for component in lowered.components.values() for file in component.files),
            *([record.build_check.layers_file] if record.build_check and record.build_check.layers_file else []),
        ],
    }


def _plans(engine: Engine, validation: ValidationReport) -> dict[str, Any]:
    """Describe the TensorRT plans, their shapes and what ran; empty if TensorRT built nothing."""
    if not engine.plans:
        return {}
    profiles = {
        profile.name: {
            **{name: str(value_range) for name, value_range in profile.shapes.items()},
            **{f"contents of {name}": str(value_range) for name, value_range in profile.values.items()},
        }
        for profile in (engine.build.profiles if engine.build else ())
    }
    return {
        "plans": list(plan_lines(engine, validation)),
        **({"profiles": profiles} if profiles else {}),
        "plan files": {capability: plan.file for capability, plan in engine.plans.items()},
    }


def _pipeline(manifest: Manifest) -> dict[str, Any]:
    """Describe the pipeline around the model; empty if there is none."""
    if manifest.pipeline is None:
        return {}
    description = {
        "inputs": [_tensor(t) for t in manifest.package.interface.inputs],
        "outputs": [_tensor(t) for t in manifest.package.interface.outputs],
        "members": {member.part: member.model for member in manifest.package.members},
        "checked": list(pipeline_lines(manifest.pipeline)),
    }
    beside = {name: _companion_values(companion) for name, companion in manifest.beside.items()}
    script = list(script_lines(manifest.script))
    return {"pipeline": description} | ({"beside": beside} if beside else {}) | ({"script": script} if script else {})


def _companion_values(model: ReleasedModel) -> dict[str, Any]:
    """Describe a companion model of the release."""
    return {
        "source": _source(model.source),
        "engine": f"{model.engine.kind}, {model.engine.precision}",
        **_plans(model.engine, model.validation),
        "checked": list(pipeline_lines(model.pipeline)),
        "gate": _gate(model.validation),
    }


def _source(source: SourceModel) -> str:
    weights = "random weights" if source.random_weights else f"digest {source.digest[:12]}"
    return (
        f"{source.address}, revision {source.revision or 'none'}, {weights}, licence {source.licence or 'not stated'}"
    )


def _gate(validation: ValidationReport) -> dict[str, Any]:
    return {
        "verdict": validation.verdict,
        "against": f"{validation.reference}, on {validation.data}",
        "worst": {
            output: f"largest error {w['max_relative']:.1e} of the magnitude, cosine {format_cosine(w['min_cosine'])}"
            for output, w in validation.worst().items()
        },
        "held out": _held_out(validation),
        "in doubt": list(doubts(validation)),
    }


def _data(data: DataSet | None) -> dict[str, Any]:
    """Describe the samples, and how many were used for what; empty if no samples were taken."""
    if data is None:
        return {}
    drawn, joined = data.calibration.count - data.calibration.joined, data.calibration.joined
    return {
        "from": data.words,
        "calibration": f"{drawn} of {data.available} samples"
        + (f", and {joined} more, each made by joining several of them" if joined else ""),
        "evaluation": f"{data.evaluation.count} others, looked at once" if data.evaluation else "none",
        "measure": data.metric,
    }


def _lowering(lowered: LoweredModel | None) -> dict[str, Any]:
    """Describe the lowering: recipe, cost, and what kept a higher precision and why; empty if nothing was lowered."""
    if lowered is None or lowered.recipe is None:
        return {}
    reasons = Counter((node.op_type, node.reason) for node in lowered.recipe.kept)
    return {
        "recipe": list(recipe_lines(lowered)),
        "settings": [f"{name}: {value}" for name, value in lowered.recipe.settings.items()],
        "higher": [f"{count} {op_type}: {reason}" for (op_type, reason), count in reasons.most_common(_MOST_REASONS)],
        "tried": [
            f"{trial.name}: mean cosine {format_cosine(trial.score)}, {trial.problem or 'accurate enough'}"
            f"{f', {format_speedup(trial.speed)}' if trial.speed else ''}{' (chosen)' if trial.chosen else ''}"
            for trial in lowered.trials
        ],
    }


def _held_out(validation: ValidationReport) -> dict[str, Any]:
    evaluation = validation.evaluation
    if evaluation is None:
        return {}
    return {"samples": describe_held_out(evaluation), "results": [line for line, _ in evaluation_lines(evaluation)]}


def _repository(repository: ModelRepository) -> dict[str, Any]:
    models = {}
    for name in repository.models():
        newest = repository.newest(name)
        models[name] = {
            "versions": repository.versions(name),
            "shown_to_triton": repository.views(name).shown(),
            "newest": newest and f"{newest.engine.kind}, {newest.engine.precision}, gate {newest.validation.verdict}",
            "compiled": newest and newest.created,
        }
    return {
        "repository": str(repository.root),
        "releases": str(repository.store / "releases"),
        "target": repository.target(),
        "models": models,
    }


def _graph(path: Path) -> dict[str, Any]:
    try:
        import onnx
        from google.protobuf.message import DecodeError

        from plansmith.compilers.onnx_files import describe_model
        from plansmith.sources.onnx_file import read_skeleton
    except ImportError as error:
        raise UsageError(
            "reading ONNX files needs the onnx package", remedy="pip install 'plansmith[compile]'"
        ) from error
    try:
        model = read_skeleton(path)
        component = describe_model(model, path)
        dtypes = Counter(onnx.TensorProto.DataType.Name(t.data_type).lower() for t in model.graph.initializer)
    except (DecodeError, StopIteration, ValueError, KeyError, OSError) as error:
        raise UsageError(f"{path} is no ONNX model: {error}", remedy="name a model that an exporter wrote") from error
    operators = Counter(node.op_type for node in model.graph.node)
    return {
        "graph": str(path),
        "made by": f"{model.producer_name} {model.producer_version}".strip() or "unknown",
        "opset": component.opset,
        "ir_version": component.ir_version,
        "interface": _interface(component),
        "weights": {name: f"{count} tensors" for name, count in dtypes.most_common()},
        "external_files": list(component.external_files),
        "operators": dict(operators.most_common()),
    }


def _interface(component: Component) -> dict[str, Any]:
    return {
        "inputs": [_tensor(t) for t in component.inputs],
        "outputs": [_tensor(t) for t in component.outputs],
    }


def _tensor(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype} [{', '.join(map(str, tensor.dims))}]"
