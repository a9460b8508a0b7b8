"""Loading, in the worker: a source model or graph, and what it is fed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from plansmith.compilers.export.requests import LoadRequest
from plansmith.compilers.shape_inputs import shape_inputs
from plansmith.config.shapes import resolve_axes
from plansmith.config.spec import DescribedInput, InputSpec
from plansmith.records.model import AxisRange, InputRange

if TYPE_CHECKING:
    import onnx

    from plansmith.sources.loaded_model import InputPlan, LoadedModel


def load(request: LoadRequest) -> LoadedModel:
    """A source model in the form that it is served in, loaded on the CPU and ready to be asked.

    Raises:
        SourceError: it cannot be loaded.
        UsageError: inputs or outputs that it does not have.
    """
    from plansmith.sources.served_form import changes_of, in_served_form

    return in_served_form(_load(request, _described(request.inputs)), changes_of(request.inputs))


def _load(request: LoadRequest, inputs: Mapping[str, InputSpec]) -> LoadedModel:
    if request.scheme == "timm":
        from plansmith.sources import timm

        return timm.load(request.folder, task=request.task)
    if request.scheme == "torch":
        from plansmith.sources.pytorch import module

        return module.load(request.folder, allow_pickle=request.allow_pickle, inputs=inputs)
    from plansmith.sources.huggingface import models

    return models.load(
        request.folder,
        trust_remote_code=request.trust_remote_code,
        allow_pickle=request.allow_pickle,
        task=request.task,
        inputs=inputs,
        outputs=request.outputs,
    )


def plan_graph(
    path: Path,
    inputs: Mapping[str, DescribedInput],
    outputs: Sequence[str],
    profiles: Mapping[str, InputRange] = MappingProxyType({}),
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
    from plansmith.sources.served_form import changes_of, served_plan

    given, changes = _described(inputs), changes_of(inputs)
    model = read_graph(path)
    onnx_import.require_servable(model, path.name)
    onnx_import.pick_outputs(model, outputs)
    for name in shape_inputs(model):
        said = given.get(name, DescribedInput())
        if name in profiles and said.low is None:
            values = profiles[name]
            given[name] = said.model_copy(update={"low": min(values.min), "high": max(values.max)})
    tensors = name_inputs(onnx_files.describe_model(model, path).inputs, given)
    plan = plan_drawn(tensors, given, index_bounds(model))
    if changes:
        plan = served_plan(plan, changes)
        take_served_form(model, changes)
    return model, plan


def _described(inputs: Mapping[str, DescribedInput]) -> dict[str, DescribedInput]:
    """The inputs of which the spec says what they are, and not only in which form they are served."""
    return {name: one for name, one in inputs.items() if one.is_description}


def axes_of(plan: InputPlan, shapes: Mapping[str, InputRange]) -> dict[str, AxisRange]:
    """The ranges of a model's axes: the given shapes, and the model's own where none is given.

    Raises:
        UsageError: shapes that the model does not have.
    """
    return resolve_axes(plan.tensors, plan.axes, plan.limits, shapes)


def axes_with_given_ranges(plan: InputPlan, shapes: Mapping[str, InputRange]) -> set[str]:
    """The axes whose range a person gave."""
    return {dim for t in plan.tensors if t.name in shapes for dim in t.dims if isinstance(dim, str)}
