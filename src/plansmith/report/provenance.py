"""Provenance section of the report: model, data, tools, files and times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from plansmith import formatting
from plansmith.formatting import format_seconds, minute
from plansmith.records.engine import Engine
from plansmith.records.model import Component, DataSet, FileEntry, OnnxModel, Recipe, SampleSet, SourceModel, Tensor
from plansmith.records.pipeline import Pipeline, Script
from plansmith.records.release import MODEL_FOLDER, ReleasedModel
from plansmith.records.validation import ServedReport, ValidationReport
from plansmith.report.text import describe_agreement, describe_route, script_lines
from plansmith.report.verdict import ENGINES, ReportFacts

_METRICS = {
    "accuracy": "top-1 accuracy",
    "token-f1": "F1 of tokens",
    "answer-f1": "F1 of answers",
    "spearman": "Spearman's rank correlation",
    "neighbours": "agreement of nearest neighbours",
}


_SCRIPT = f"{MODEL_FOLDER}/script.py"
"""A person's script in a release; by its file name there, as importing that would import NumPy."""


@dataclass(frozen=True)
class Fact:
    """Fact: a term and its text; `exact` for digests, names and the like, which users copy."""

    term: str
    text: str
    exact: bool = False


@dataclass(frozen=True)
class Group:
    """Facts about one subject."""

    title: str
    facts: tuple[Fact, ...]


def groups_of(facts: ReportFacts) -> tuple[Group, ...]:
    """Return the known facts, grouped by subject."""
    recipe = facts.lowered.recipe if facts.lowered else None
    groups: list[tuple[str, Iterator[Fact]]] = [("Release" if facts.version else "Compile", _release(facts))]
    if facts.source is not None:
        groups.append(("Model", _source(facts.source)))
    if facts.data is not None:
        groups.append(("Data", _data(facts.data)))
    if recipe is not None:
        groups.append(("Recipe", _recipe(recipe)))
    if facts.onnx is not None:
        groups.append(("Graph", _graph(facts.onnx)))
    if facts.validation is not None:
        groups.append(("Comparison", _comparison(facts.validation, served=facts.served is not None)))
    if facts.pipeline is not None:
        groups.append(("Raw inputs and outputs", _pipeline(facts.pipeline)))
    for name, model in facts.beside.items():
        groups.append((f"{name}, beside it", _companion_facts(model, "" if facts.script is not None else f"{name}_")))
    if facts.script is not None:
        groups.append(("Script", _script(facts.script, facts.files)))
    if facts.engine is not None:
        groups.append(("Tools", _tools(facts.engine)))
    if facts.served is not None:
        groups.append(("Triton", _served(facts.served)))
    return tuple(Group(title, tuple(rows)) for title, rows in groups)


def row_lists(data: DataSet | None) -> tuple[tuple[str, str], ...]:
    """Return the positions of the samples in the data, in order of use."""
    sets = (("Calibration", data.calibration), ("Evaluation", data.evaluation)) if data else ()
    return tuple(
        (name, ", ".join(map(str, samples.rows))) for name, samples in sets if samples is not None and samples.rows
    )


def _release(facts: ReportFacts) -> Iterator[Fact]:
    yield Fact("Made", f"{minute(facts.created)} UTC by plansmith {facts.plansmith}")
    yield Fact("Target", facts.target)
    if facts.engine is not None:
        yield Fact("Engine", f"{ENGINES[facts.engine.kind]}, {facts.engine.precision.upper()}")
    if facts.release_digest is not None:
        yield Fact("Digest", facts.release_digest, exact=True)


def _source(source: SourceModel) -> Iterator[Fact]:
    yield Fact("Source", source.address, exact=True)
    if source.revision is not None:
        yield Fact("Revision", source.revision, exact=True)
    yield Fact("Digest", source.digest, exact=True)
    yield Fact("Licence", source.licence or "not stated")
    yield Fact("Weights", "drawn at random" if source.random_weights else "the model's own")
    if source.task is not None:
        yield Fact("Task", source.task)
    if source.trust_remote_code:
        yield Fact("Code", "ran Python that came with the model")


def _data(data: DataSet) -> Iterator[Fact]:
    yield Fact("Samples", data.words)
    kind = "drawn at random" if data.guessed else "plansmith's own"
    yield Fact("Given by", "the spec or --data" if data.real else kind)
    if data.revision is not None:
        yield Fact("Revision", data.revision, exact=True)
    yield Fact("Digest", data.digest, exact=True)
    yield Fact("Available", formatting.count(data.available, "different sample"))
    yield Fact("Calibration", _samples(data.calibration))
    yield Fact("Evaluation", _samples(data.evaluation) if data.evaluation else "none")
    yield Fact("Order", f"drawn with seed {data.seed}")
    if data.metric != "none":
        yield Fact("Measure", _METRICS[data.metric])
    if data.pooling != "none":
        yield Fact("Pooling", "mean of the tokens" if data.pooling == "mean" else "first token")


def _samples(sample_set: SampleSet) -> str:
    labels = ", with labels" if sample_set.labelled else ""
    return (
        f"{formatting.count(sample_set.count, 'sample')} in"
        f" {formatting.count(len(sample_set.cases), 'batch', 'batches')}{labels}"
    )


def _recipe(recipe: Recipe) -> Iterator[Fact]:
    yield Fact("Method", recipe.method)
    operators = sorted(recipe.lowered.items(), key=lambda item: (-item[1], item[0]))
    yield Fact("Lowered", ", ".join(f"{number:,} {operator}" for operator, number in operators) or "nothing")
    yield Fact("Kept", formatting.count(len(recipe.kept), "node"))
    if recipe.calibration:
        yield Fact("Calibrated on", formatting.count(recipe.calibration_samples, "sample"))
        yield Fact("Their digest", recipe.calibration, exact=True)
    yield from (Fact(name.replace("_", " ").capitalize(), value) for name, value in recipe.settings.items())


def _graph(onnx: OnnxModel) -> Iterator[Fact]:
    yield Fact("Exporter", onnx.describe_exporter)
    for attempt in onnx.attempts:
        if attempt.problem is not None:
            fixed = f" with {' and '.join(attempt.fixed)} fixed" if attempt.fixed else ""
            yield Fact(f"Not {attempt.exporter}{fixed}", attempt.problem)
        elif attempt.rewrites:
            yield Fact("Rewritten for it", ", ".join(attempt.rewrites))
    for component in onnx.components.values():
        yield from _interface(component)
        if component.opset:
            yield Fact("Opset", f"{component.opset}, IR version {component.ir_version}")
    for name, axis in onnx.axes.items():
        multiples = f", in multiples of {axis.step}" if axis.step > 1 else ""
        yield Fact(f"Axis {name}", f"{axis.min} to {axis.max}, usually {axis.opt}{multiples}")
    for entry in onnx.constrained_axes:
        yield Fact(f"Axis {entry.axis}", entry.explanation)


def _interface(component: Component) -> Iterator[Fact]:
    for title, tensors in (("Inputs", component.inputs), ("Outputs", component.outputs)):
        yield Fact(title, "\n".join(map(_tensor, tensors)), exact=True)


def _tensor(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype} [{', '.join(map(str, tensor.dims))}]"


def _comparison(validation: ValidationReport, *, served: bool) -> Iterator[Fact]:
    yield Fact("Reference", validation.reference)
    yield Fact("Candidate", validation.candidate)
    yield Fact("Compared on", validation.data)
    if not served:
        yield Fact("On Triton", "not checked")


def _script(script: Script, files: Iterable[FileEntry]) -> Iterator[Fact]:
    for file in files:
        if file.path == _SCRIPT:
            yield Fact("Digest", file.sha256, exact=True)
    for tensor in script.outputs:
        yield Fact("Output", _tensor(tensor))
    for line in script_lines(script):
        yield Fact("Asked", line)


def _companion_facts(model: ReleasedModel, front: str) -> Iterator[Fact]:
    """Describe a companion model of the release; labels of its client-facing facts begin with `front`."""
    yield from _source(model.source)
    yield Fact("Engine", f"{ENGINES[model.engine.kind]}, {model.engine.precision.upper()}")
    yield Fact("Gate", model.validation.verdict)
    for output, worst in model.validation.worst().items():
        yield Fact(f"Largest error of {output}", f"{worst['max_relative']:.1e} of its magnitude")
    outputs = tuple(tensor.model_copy(update={"name": f"{front}{tensor.name}"}) for tensor in model.pipeline.outputs)
    yield from _pipeline(model.pipeline.model_copy(update={"outputs": outputs}))


def _pipeline(pipeline: Pipeline) -> Iterator[Fact]:
    yield Fact("Parts", describe_route(pipeline))
    for term, tensors in (("Input", pipeline.inputs), ("Output", pipeline.outputs)):
        yield from (Fact(term, _tensor(tensor), exact=True) for tensor in tensors)
    yield Fact("Asked", describe_agreement(pipeline))


def _tools(engine: Engine) -> Iterator[Fact]:
    yield from (Fact(tool, version, exact=True) for tool, version in engine.toolchain.items())
    yield from (Fact(name, value, exact=True) for name, value in engine.options.items())


def _served(served: ServedReport) -> Iterator[Fact]:
    backend = "its own backend" if served.backend == "real" else "a stand-in backend"
    yield Fact("Server", f"{served.server_version} with {backend} ({served.backend_runtime})")
    if served.dali is not None:
        yield Fact("DALI", "its own backend" if served.dali == "real" else "in a stand-in backend")
    yield Fact("Instances", served.device.upper())
    yield Fact("Requests", f"{served.requests:,} by {formatting.count(served.concurrent_clients, 'client')} at once")
    yield Fact(
        "Latency", f"median {seconds_exact(served.median_seconds)}, slowest {seconds_exact(served.worst_seconds)}"
    )


def seconds_exact(seconds: float) -> str:
    """Format a latency: 4.2 ms, 310 ms, 2.1 s."""
    milliseconds = 1000 * seconds
    if milliseconds >= 1000:
        return format_seconds(seconds)
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
