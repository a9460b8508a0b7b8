"""Spec scaffolding: fetches and loads a model once, and writes a spec with its inputs, outputs and options."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.data import DataSpec
from plansmith.config.engine_options import LoweringOptions
from plansmith.config.source_reference import SourceReference, parse_reference
from plansmith.config.spec import ModelSpec, escaped
from plansmith.config.triton import TritonOptions
from plansmith.records.model import AxisRange, InputRange, Precision, SourceModel, Tensor
from plansmith.records.pipeline import PREPARED_INPUTS
from plansmith.records.validation import Tolerance
from plansmith.sources.loaded_model import Signature
from plansmith.sources.reference import refuse_unfitting
from plansmith.steps.context import runs_foreign_code
from plansmith.steps.fetch import fetch, load_request
from plansmith.steps.runner import Listener, StageRunner
from plansmith.steps.worker import tasks

_WIDTH = 100
_DATA_EXAMPLE = ("calibration", "evaluation", "metric")
_CHOSEN = ("task", "random_weights", "trust_remote_code", "allow_pickle")


@dataclass(frozen=True)
class Studied:
    """Studied model: where it comes from, and its description of itself."""

    name: str
    reference: SourceReference
    source: SourceModel
    signature: Signature

    def document(self) -> dict[str, Any]:
        """Return the study as JSON-ready fields, without the reference."""
        return {
            "name": self.name,
            "source": self.source.model_dump(mode="json"),
            "signature": self.signature.model_dump(mode="json"),
        }


def study(spec: ModelSpec, *, listener: Listener) -> Studied:
    """Fetch and load a model whose source is relative to the working directory.

    Raises:
        PlansmithError: it cannot be found, fetched or loaded.
    """
    reference = parse_reference(spec.source, relative_to=Path.cwd())
    refuse_unfitting(reference, spec)
    name = spec.name or reference.default_name
    artifacts, isolated = Path(spec.artifacts).absolute(), runs_foreign_code(spec)
    stages = StageRunner(name, artifacts, listener=listener, force=False, dry=False, isolated=isolated)
    try:
        source = fetch(stages, spec, reference)
        assert source is not None, "what is brought here is no look"
        with stages.timed("describe"):
            signature = stages.run_in_worker(tasks.DESCRIBE, load_request(spec, source))
    finally:
        stages.close()
    return Studied(name, reference, source.record, signature)


def write_spec(spec: ModelSpec, studied: Studied, folder: Path) -> str:
    """Return a commented YAML spec for a folder; it compiles to the same result as the source alone.

    Args:
        spec: what was asked for.
        studied: the model.
        folder: resolved; relative directories in the spec start from it.
    """
    lines = [
        *_comment(f"A spec for plansmith compile, written by plansmith init. {_origin(studied)}"),
        *_comment("Every key but `source` can be left out; `plansmith schema` tells all that there are."),
        *_field("source", _source(studied.reference, spec.source, folder)),
        *_field("name", studied.name),
    ]
    for key in _CHOSEN:
        if getattr(spec, key):
            lines += _field(key, getattr(spec, key))
    artifacts = list(_field("artifacts", _from(folder, Path(spec.artifacts))))
    if "artifacts" not in spec.model_fields_set:
        artifacts[-1] = f"# {artifacts[-1]}"
    lines += artifacts
    lines += _shapes(studied.signature)
    for key in ("engine", "precision", "target"):
        lines += _field(key, getattr(spec, key))
    lines += _data(studied.signature)
    lines += _lowering(spec.lowering)
    lines += _tolerances(spec, studied.signature)
    if PREPARED_INPUTS & {tensor.name for tensor in studied.signature.inputs}:
        lines += ["", *_comment(_description("pipeline")), "# pipeline: {}"]
    lines += _triton(spec.triton)
    return "\n".join(lines) + "\n"


def _origin(studied: Studied) -> str:
    licence = f"The model's licence: {studied.source.licence}." if studied.source.licence else "No licence was found."
    source, typed = studied.source, studied.reference.revision
    if source.registered and typed != source.revision:
        return f"{licence} It was version {source.revision}; write {source.pinned_address} to stay with it."
    if source.revision is None or typed is not None:
        return licence
    return f"{licence} It was at commit {source.revision}; write @{source.revision} to stay with it."


def _source(reference: SourceReference, typed: str, folder: Path) -> str:
    """Return the source in the form that a spec in a given folder needs."""
    if reference.path is None:
        return typed
    return f"{reference.scheme}:{_from(folder, Path(reference.location).expanduser())}"


def _from(folder: Path, path: Path) -> str:
    """Return the relative path from a folder; symbolic links are kept if the result resolves to the same path."""
    if path.is_absolute():
        return str(path)
    relative = os.path.relpath(path, folder)
    way = relative if (folder / relative).resolve() == path.resolve() else os.path.relpath(path.resolve(), folder)
    return way if way.startswith(".") else f"./{way}"


def _shapes(signature: Signature) -> Iterator[str]:
    """Yield a shape range for each input whose axes no other input covers; the others follow."""
    moving = {tensor.name: {dim for dim in tensor.dims if isinstance(dim, str)} for tensor in signature.inputs}
    written: list[Tensor] = []
    for tensor in signature.inputs:
        own = moving[tensor.name]
        covered = any(own < other for other in moving.values()) or any(own <= moving[w.name] for w in written)
        if own and not covered:
            written.append(tensor)
    if not written:
        return
    yield from ("", *_comment(_description("shapes")), "shapes:")
    settled: set[str] = set()
    for tensor in written:
        own = moving[tensor.name]
        others = [name for name, axes in moving.items() if axes and axes <= own and name != tensor.name]
        yield from _comment(_about(tensor, others, own & settled, signature), "  ")
        yield f'  {_scalar(tensor.name)}: "{_range(tensor, signature.axes)}"'
        settled |= own


def _about(tensor: Tensor, others: list[str], settled: set[str], signature: Signature) -> str:
    """Describe an input: its axes and limits, the inputs that follow it, and the axes that must agree with others."""
    phrases = [" x ".join(str(dim) for dim in tensor.dims)]
    phrases += [
        f"{dim} at most {signature.limits[dim]} in this model" for dim in tensor.dims if dim in signature.limits
    ]
    phrases += [f"the same {', '.join(sorted(settled))} as above"] if settled else []
    phrases += [f"{', '.join(others)} {'follow' if len(others) > 1 else 'follows'}"] if others else []
    phrases += (
        [f"{signature.mask_input} marks padding with 0"] if signature.mask_input in {tensor.name, *others} else []
    )
    return "; ".join(phrases)


def _range(tensor: Tensor, axes: dict[str, AxisRange]) -> InputRange:
    ranges = [AxisRange(min=d, opt=d, max=d) if isinstance(d, int) else axes[d] for d in tensor.dims]
    return InputRange(
        min=tuple(r.min for r in ranges), opt=tuple(r.opt for r in ranges), max=tuple(r.max for r in ranges)
    )


def _data(signature: Signature) -> Iterator[str]:
    """Yield an example of a data section for the kind of inputs that the model takes, as a comment."""
    names = {tensor.name for tensor in signature.inputs}
    path = "sentences.txt" if "input_ids" in names else "images" if "pixel_values" in names else "inputs.npz"
    fields = DataSpec.model_fields
    values = {"path": path, **{key: fields[key].default for key in _DATA_EXAMPLE}}
    yield from ("", *_comment(f"{_description('data')} For example:"))
    yield from _commented("data", values, {key: str(fields[key].description) for key in values})


def _lowering(options: LoweringOptions) -> Iterator[str]:
    """Yield the default lowering options as a comment."""
    fields = LoweringOptions.model_fields
    values = {key: getattr(options, key) for key in fields}
    yield from ("", *_comment(f"{_description('lowering')} As it is when left out:"))
    yield from _commented("lowering", values, {key: str(fields[key].description) for key in values})


def _commented(key: str, values: dict[str, Any], about: dict[str, str]) -> Iterator[str]:
    """Yield a mapping that is commented out; the descriptions of its values stay comments once it is enabled."""
    yield f"# {key}:"
    for inner, value in values.items():
        yield from (f"# {line}" for line in _comment(about[inner], "  "))
        yield f"#   {inner}: {_scalar(list(value) if isinstance(value, tuple) else value)}"


def _tolerances(spec: ModelSpec, signature: Signature) -> Iterator[str]:
    """Yield example tolerances with the model's outputs and the defaults for its precision, as a comment."""
    precision = Precision.FP32 if spec.precision == "auto" else spec.precision
    from plansmith.validation.comparison import TOLERANCES  # which needs NumPy

    default = TOLERANCES[precision].model_dump()
    yield from ("", *_comment(f"{_description('tolerances')} Those of {precision} are:"))
    for key in default:
        yield from _comment(f"{key}: {Tolerance.model_fields[key].description}")
    yield "# tolerances:"
    for output in signature.outputs:
        yield f"#   {_scalar(output)}:"
        yield from (f"#     {key}: {_scalar(value)}" for key, value in default.items())


def _triton(options: TritonOptions) -> Iterator[str]:
    """Yield the most commonly used Triton options with their default values."""
    fields = TritonOptions.model_fields
    assert options.dynamic_batching
    delay = options.dynamic_batching.max_queue_delay_microseconds
    yield from ("", *_comment(_description("triton")), "triton:")
    yield from _comment(str(fields["dynamic_batching"].description), "  ")
    yield f"  dynamic_batching: {{max_queue_delay_microseconds: {delay}}}"
    yield from _comment(str(fields["model_warmup"].description), "  ")
    yield f"  model_warmup: {options.model_warmup}"
    yield from (f"# {line}" for line in _comment(str(fields["instance_group"].description), "  "))
    yield "#   instance_group: [{count: 1}]"


def _field(key: str, value: Any) -> Iterator[str]:
    yield from ("", *_comment(_description(key)), f"{key}: {_scalar(value)}")


def _description(key: str) -> str:
    return str(ModelSpec.model_fields[key].description)


def _comment(text: str, indent: str = "") -> list[str]:
    """Format text as comment lines, whatever its line endings."""
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _scalar(value: Any) -> str:
    """Format one value as single-line YAML, quoted if necessary."""
    import yaml

    plain = str(value) if isinstance(value, str) else value
    style = '"' if isinstance(plain, str) and not plain.isprintable() else None
    written = yaml.safe_dump(escaped(plain), width=float("inf"), allow_unicode=True, default_style=style)
    return str(written).removesuffix("\n").removesuffix("\n...")
