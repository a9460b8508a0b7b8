"""Source model loading in the worker: loads and feeds a model, and runs it once per shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from plansmith.compilers.export.requests import LoadRequest
from plansmith.compilers.shape_inputs import shape_inputs
from plansmith.config.shapes import resolve_axes
from plansmith.config.spec import DescribedInput, InputSpec
from plansmith.data.reference import Sizes
from plansmith.errors import SourceError
from plansmith.records.model import AxisRange, InputRange
from plansmith.sources.loaded_model import changed_output
from plansmith.system.memory import tells_of_memory
from plansmith.system.tasks import Progress

if TYPE_CHECKING:
    import onnx

    from plansmith.records.arrays import Arrays
    from plansmith.sources.loaded_model import InputPlan, LoadedModel


def load(request: LoadRequest) -> LoadedModel:
    """Load a source model in its served form, on the CPU, ready to run.

    Raises:
        SourceError: it cannot be loaded.
        UsageError: inputs or outputs that it does not have.
    """
    from plansmith.sources.loaded_model import changes_of, in_served_form

    return in_served_form(_load(request, _described(request.inputs)), changes_of(request.inputs))


def _load(request: LoadRequest, inputs: Mapping[str, InputSpec]) -> LoadedModel:
    if request.scheme == "timm":
        from plansmith.sources import timm

        return timm.load(request.folder, task=request.task)
    if request.scheme == "torch":
        from plansmith.sources import pytorch

        file = Path(request.location)
        source = file if file.is_file() else request.folder
        return pytorch.load(source, allow_pickle=request.allow_pickle, inputs=inputs)
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
    """Read an ONNX file that can be served, with the requested outputs, and plan its inputs.

    Graph and plan are in the form that the model is served in: what is to be INT32 or NHWC is converted in the graph.
    The graph is a skeleton unless it was converted or has weights beside it.

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
    from plansmith.compilers.export.onnx_import import take_served_form
    from plansmith.sources.loaded_model import changes_of, served_plan
    from plansmith.sources.onnx_file import read_graph, weights_of
    from plansmith.sources.random_inputs import index_bounds, name_inputs, plan_drawn

    descriptions, changes = _described(inputs), changes_of(inputs)
    model = read_graph(path, weights=bool(changes or weights_of(path)))
    onnx_import.require_servable(model, path.name)
    onnx_import.pick_outputs(model, outputs)
    for name in shape_inputs(model):
        description = descriptions.get(name, DescribedInput())
        if name in profiles and description.low is None:
            values = profiles[name]
            descriptions[name] = description.model_copy(update={"low": min(values.min), "high": max(values.max)})
    tensors = name_inputs(onnx_files.describe_model(model, path).inputs, descriptions)
    plan = plan_drawn(tensors, descriptions, index_bounds(model))
    if changes:
        plan = served_plan(plan, changes)
        take_served_form(model, changes)
    return model, plan


def _described(inputs: Mapping[str, DescribedInput]) -> dict[str, DescribedInput]:
    """The inputs whose meaning the spec describes, not only the form in which they are served."""
    return {name: entry for name, entry in inputs.items() if entry.is_description}


def axes_of(plan: InputPlan, shapes: Mapping[str, InputRange]) -> dict[str, AxisRange]:
    """Return the ranges of a model's axes: the given shapes, or else the model's own.

    Raises:
        UsageError: shapes that the model does not have.
    """
    return resolve_axes(plan.tensors, plan.axes, plan.limits, shapes)


def axes_with_given_ranges(plan: InputPlan, shapes: Mapping[str, InputRange]) -> set[str]:
    """Return the axes with a range given by the user."""
    return {dim for t in plan.tensors if t.name in shapes for dim in t.dims if isinstance(dim, str)}


class ReferenceRunner:
    """Reference runner: a model's outputs, cached by shape.

    Args:
        model: runs the source model.
        plan: what it is fed with.
        axes: the ranges that it is to be compiled for.
        progress: told what is done.
    """

    def __init__(
        self, model: Callable[[Arrays], Arrays], plan: InputPlan, axes: Mapping[str, AxisRange], progress: Progress
    ) -> None:
        self._model = model
        self._plan = plan
        self._axes = axes
        self._progress = progress
        self._cases: dict[tuple[int, ...], tuple[Arrays, Arrays]] = {}

    def answer(self, sizes: Sizes) -> Arrays:
        """Return the cached outputs at a shape; raises what the model raises, unless the shape was guessed."""
        return self.cached_case("another shape", sizes)[1]

    def cached_case(self, name: str, sizes: Sizes) -> tuple[Arrays, Arrays]:
        """Return the inputs and outputs at a shape, cached in memory.

        Raises:
            UsageError: the shape was guessed, and the model refuses it.
        """
        key = tuple(sizes[axis] for axis in self._plan.axes)
        if key not in self._cases:
            self._cases[key] = self.case(name, sizes)
        return self._cases[key]

    def smallest_case(self, sizes: Sizes) -> tuple[Arrays, Arrays]:
        """Return the smallest cached case, by the bytes of its inputs; that of the given shape where there is none."""
        self.cached_case("traced", sizes)
        return min(self._cases.values(), key=lambda case: sum(array.nbytes for array in case[0].values()))

    def takes(self, sizes: Sizes) -> bool:
        """Whether the model runs at a shape; its outputs are cached.

        Raises:
            Exception: the machine is out of memory, which tells nothing about the model.
        """
        try:
            self.cached_case("another shape", sizes)
        except Exception as error:
            if tells_of_memory(f"{type(error).__name__}: {error}"):
                raise
            return False
        return True

    def case(self, name: str, sizes: Sizes) -> tuple[Arrays, Arrays]:
        """Return the inputs and outputs at a shape.

        Args:
            name: of the shape, for the progress.
            sizes: of every axis of the plan, in any order.

        Raises:
            UsageError: the shape was guessed, and the model refuses it.
        """
        ordered = {axis: sizes[axis] for axis in self._plan.axes}
        entry = self._cases.get(tuple(ordered.values()))
        return entry or reference_at_shape(self._model, self._plan, self._axes, (name, ordered), self._progress)


def reference_at_shape(
    model: Callable[[Arrays], Arrays],
    plan: InputPlan,
    axes: Mapping[str, AxisRange],
    planned: tuple[str, Sizes],
    progress: Progress,
) -> tuple[Arrays, Arrays]:
    """Return inputs at one shape, and the source model's outputs.

    Raises:
        UsageError: the shape was guessed, and the model refuses it.
    """
    name, sizes = planned
    progress(f"asking the source model at {name} ({'x'.join(map(str, sizes.values()))})")
    feed = plan.make(sizes)
    try:
        return feed, model(feed)
    except Exception as error:
        if not plan.guessed or tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        from plansmith.sources.axis_search import explain_failure

        progress("looking for the axis that it refuses")
        raise explain_failure(lambda sizes: model(plan.make(sizes)), plan, axes, sizes, error) from error


def require_repeatable(ask: Callable[[Arrays], Arrays], feed: Arrays, answer: Arrays) -> None:
    """Require that the model is deterministic: outputs of one that samples at random cannot be compared.

    Raises:
        SourceError: they do not.
    """
    changed = changed_output(answer, ask(feed))
    if changed is not None:
        raise SourceError(
            f"the model gives different answers to the same inputs: {changed!r} has changed",
            remedy="take out of it what is random (dropout, RandomNormal), and export or save it again",
        )
