"""Loading, in the heavy child: a source model or graph, and what it is fed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from plansmith.compilers.shape_inputs import shape_inputs
from plansmith.config.shapes import resolve_axes
from plansmith.config.spec import DescribedInput, InputSpec
from plansmith.records.model import AxisRange, InputRange

if TYPE_CHECKING:
    import onnx

    from plansmith.sources.loaded_model import InputPlan, LiveModel


def load(
    source: Mapping[str, Any], folder: Path, allow_pickle: bool, inputs: Mapping[str, Any], outputs: Sequence[str]
) -> LiveModel:
    """A source model in the form that it is served in, loaded and ready to be asked.

    Raises:
        SourceError: it cannot be loaded.
        UsageError: inputs or outputs that it does not have.
    """
    from plansmith.sources.served_form import in_served_form

    described = _described(inputs)
    return in_served_form(_load(source, folder, allow_pickle, described, outputs), served_changes(inputs))


def _load(
    source: Mapping[str, Any], folder: Path, allow_pickle: bool, inputs: Mapping[str, InputSpec], outputs: Sequence[str]
) -> LiveModel:
    if source["scheme"] == "timm":
        from plansmith.sources import timm

        return timm.load(folder, task=source["task"] or "")
    if source["scheme"] == "torch":
        from plansmith.sources.pytorch import module

        return module.load(folder, allow_pickle=allow_pickle, inputs=inputs)
    from plansmith.sources.huggingface import models

    return models.load(
        folder,
        trust_remote_code=source["trust_remote_code"],
        allow_pickle=allow_pickle,
        task=source["task"] or "",
        inputs=inputs,
        outputs=outputs,
    )


def plan_graph(
    path: Path, inputs: Mapping[str, Any], outputs: Sequence[str], profiles: Mapping[str, Any] = MappingProxyType({})
) -> tuple[onnx.ModelProto, InputPlan]:
    """Read an ONNX file that can be served, with the outputs that were asked for, and plan what to feed it with.

    Graph and plan are in the form that the model is served in: what is to be INT32 or NHWC is converted in the graph.

    Args:
        path: of the file.
        inputs: what the spec says of inputs, by name.
        outputs: their names; all of the file's where there are none.
        profiles: the ranges that the profiles of a TensorRT plan give inputs. Those of an input that holds a shape are
            of its contents, which are drawn from them unless `inputs` says another range.

    Raises:
        SourceError: the file cannot be read, or served.
        ExportError: its weights are in BF16.
        UsageError: inputs, outputs or forms of inputs that it does not have.
    """
    from plansmith.compilers import onnx_files
    from plansmith.compilers.export import onnx_import
    from plansmith.compilers.export.served_graph import take_served_form
    from plansmith.sources.inputs.graph import index_bounds, name_inputs
    from plansmith.sources.inputs.random import plan_drawn
    from plansmith.sources.onnx_file import read_graph
    from plansmith.sources.served_form import served_plan

    given, changes = _described(inputs), served_changes(inputs)
    model = read_graph(path)
    onnx_import.require_servable(model, path.name)
    onnx_import.pick_outputs(model, outputs)
    for name in shape_inputs(model):
        said = given.get(name, DescribedInput())
        if name in profiles and said.low is None:
            values = InputRange.model_validate(profiles[name])
            given[name] = said.model_copy(update={"low": min(values.min), "high": max(values.max)})
    tensors = name_inputs(onnx_files.describe_model(model, path).inputs, given)
    plan = plan_drawn(tensors, given, index_bounds(model))
    if changes:
        plan = served_plan(plan, changes)
        take_served_form(model, changes)
    return model, plan


def served_changes(inputs: Mapping[str, Any]) -> dict[str, DescribedInput]:
    """The inputs that are served in another form than the source's, of what the spec says of all."""
    from plansmith.sources.served_form import changes_of

    return changes_of(_specs(inputs))


def _specs(inputs: Mapping[str, Any]) -> dict[str, DescribedInput]:
    return {name: DescribedInput.model_validate(fields) for name, fields in inputs.items()}


def _described(inputs: Mapping[str, Any]) -> dict[str, DescribedInput]:
    """The inputs of which the spec says what they are, and not only in which form they are served."""
    return {name: one for name, one in _specs(inputs).items() if one.is_description}


def axes_of(plan: InputPlan, shapes: Mapping[str, Any]) -> dict[str, AxisRange]:
    """The ranges of a model's axes: the given shapes, and the model's own where none is given.

    Raises:
        UsageError: shapes that the model does not have.
    """
    given = {name: InputRange.model_validate(fields) for name, fields in shapes.items()}
    return resolve_axes(plan.tensors, plan.axes, plan.limits, given)


def given_axes(plan: InputPlan, shapes: Mapping[str, Any]) -> set[str]:
    """The axes whose range a person gave."""
    return {dim for t in plan.tensors if t.name in shapes for dim in t.dims if isinstance(dim, str)}
