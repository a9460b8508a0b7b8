"""16-bit graphs: written with few casts, and as an FP32 twin with the same rounding for evaluation on a CPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.compilers.precision.fp16.format import (
    FLOAT,
    MOVES,
    Format,
    Slots,
    cast_target,
    casts_to_float,
    rename_inside,
    slots,
)
from plansmith.compilers.precision.fp16.ranges import FLOOR
from plansmith.compilers.precision.graph import Graph, drop_unused, names_inside, subgraphs

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Plan:
    """Plan for writing a graph: its formats and opset.

    Attributes:
        floats: its tensors in FP32.
        form: what nodes are lowered to.
        opset: of the graph.
        ends: inputs of nodes, by node's name and place, where masks end at the floor.
        lower_io: inputs and outputs are lowered too.
    """

    floats: Collection[str]
    form: Format
    opset: int
    ends: Mapping[str, int]
    lower_io: bool


def settle(graph: Graph, plan: Plan, high: Collection[str]) -> dict[str, Slots]:
    """Return the nodes to lower, by name, with their slots: all but the kept ones and those that only move FP32 data.

    A node that computes nothing follows its neighbours: between FP32 and FP32 it stays, so that nothing is rounded on
    the way, and a question about a tensor (its shape, a comparison) is asked in the type that the tensor has.
    """
    nodes = graph.model.graph.node
    low: dict[str, Slots] = {}
    asking: dict[str, Slots] = {}
    for node in nodes:
        if node.name in high or not any(t in plan.floats for t in (*node.input, *node.output)):
            continue
        places = slots(node, plan.floats, plan.form, plan.opset)
        if not isinstance(places, str):
            (low if places.outputs else asking)[node.name] = places
    _leave_between(graph, plan, low, asking)
    low_tensors = _made_low(graph, plan, low)
    for node in nodes:
        if node.name in asking:
            sources = [node.input[p] for p in asking[node.name].inputs if graph.constant(node.input[p]) is None]
            if sources and all(t in low_tensors for t in sources):
                low[node.name] = asking[node.name]
    return low


def _leave_between(graph: Graph, plan: Plan, low: dict[str, Slots], asking: Collection[str]) -> None:
    """Remove from `low` the nodes that only move FP32 to FP32, and integers that a consumer needs exactly."""
    low_tensors, wanted_high = _made_low(graph, plan, low), _wanted_high(graph, plan, low, asking)
    stays: set[str] = set()
    for node in graph.model.graph.node:
        if node.name not in low or not (node.op_type in MOVES or casts_to_float(node)):
            continue
        sources = [t for t in node.input if t in plan.floats and graph.constant(t) is None]
        if all(_maker(graph, t) in stays or t not in low_tensors for t in sources):
            users = [u for o in node.output for u in graph.consumers(o)]
            in_full = casts_to_float(node) and not sources and any(u.name not in low for u in users)
            if in_full or all(o in wanted_high for o in node.output):
                stays.add(node.name)
    for name in stays:
        del low[name]


def _maker(graph: Graph, tensor: str) -> str:
    node = graph.producer(tensor)
    return "" if node is None else node.name


def _made_low(graph: Graph, plan: Plan, low: Mapping[str, Slots]) -> set[str]:
    low_tensors = {n.output[p] for n in graph.model.graph.node if n.name in low for p in low[n.name].outputs}
    return low_tensors | (graph.inputs & set(plan.floats) if plan.lower_io else set())


def _wanted_high(graph: Graph, plan: Plan, low: Mapping[str, Slots], asking: Collection[str]) -> set[str]:
    """The tensors that no consumer takes in sixteen bits, directly or through nodes that pass them on."""
    high_tensors: set[str] = set()
    for node in reversed(graph.model.graph.node):
        for output in node.output:
            users = graph.consumers(output)
            low_end = plan.lower_io and output in graph.outputs
            handed_on = (u for u in users if u.name in low and u.name not in asking)
            if not low_end and all(u.op_type in MOVES and set(u.output) <= high_tensors for u in handed_on):
                high_tensors.add(output)
    return high_tensors


def write(graph: Graph, plan: Plan, low: Mapping[str, Slots]) -> onnx.ModelProto:
    """Return a copy of a graph with nodes lowered.

    Args:
        graph: in FP32; not changed.
        plan: what it is written in.
        low: the nodes to lower, by name, with where.
    """
    return _Writing(graph, plan, low).done()


class _Writing:
    def __init__(self, graph: Graph, plan: Plan, low: Mapping[str, Slots]) -> None:
        import onnx

        self._source, self._plan, self._low = graph, plan, low
        self._model = onnx.ModelProto()
        self._model.CopyFrom(graph.model)
        del self._model.graph.node[:]
        self._low_names = _made_low(graph, plan, low)
        self._names = Graph(graph.model)  # a register of names of its own
        self._copies: dict[tuple[str, str], str] = {}
        self._renamed: dict[str, str] = {}

    def done(self) -> onnx.ModelProto:
        self._rename_outputs()
        for node in self._source.model.graph.node:
            self._take(node)
        self._end_outputs()
        drop_unused(self._model)
        self._tell_types()
        return self._model

    def _take(self, source: onnx.NodeProto) -> None:
        """Write one node, after the casts that it is the first to need."""
        import onnx

        node = onnx.NodeProto()
        node.CopyFrom(source)
        places = self._low.get(node.name)
        for place, name in enumerate(source.input):
            if name not in self._plan.floats:
                continue
            as_low = places is not None and place in places.inputs
            end = as_low and self._plan.ends.get(node.name) == place
            node.input[place] = self._masked(name) if end else self._typed(name, as_low)
        node.output[:] = [self._renamed.get(name, name) for name in source.output]
        if places is not None and casts_to_float(node):
            next(a for a in node.attribute if a.name == "to").i = self._plan.form.element
        if any(True for _ in subgraphs(node)):
            outside = names_inside(source) & set(self._plan.floats) & (self._low_names | self._renamed.keys())
            rename_inside(node, {name: self._typed(name, False) for name in sorted(outside)})
        self._model.graph.node.append(node)

    def _typed(self, name: str, as_low: bool) -> str:
        """A tensor in the requested type, cast where it is produced in the other."""
        stored = self._source.constant(name)
        if stored is not None:
            return self._constant(name, "", stored) if as_low else name
        is_low, current = name in self._low_names, self._renamed.get(name, name)
        if is_low == as_low:
            return current
        return self._cast(current, self._plan.form.element if as_low else FLOAT)

    def _masked(self, name: str) -> str:
        """A mask in sixteen bits, with values below `FLOOR` raised to it."""
        import numpy as np

        stored = self._source.constant(name)
        if stored is not None:
            return self._constant(name, "masked", np.maximum(stored, np.float32(FLOOR)))
        current = self._typed(name, False)
        key = (current, "masked")
        if key not in self._copies:
            floor = self._constant("mask_floor", "masked", np.array(FLOOR, np.float32), lowered=False)
            self._copies[key] = self._node("Max", [current, floor], f"{name}_masked")
        return self._cast(self._copies[key], self._plan.form.element)

    def _cast(self, name: str, element: int) -> str:
        key = (name, str(element))
        if key not in self._copies:
            suffix = "fp32" if element == FLOAT else self._plan.form.precision
            self._copies[key] = self._node("Cast", [name], f"{name}_to_{suffix}", to=element)
            if element != FLOAT:
                self._low_names.add(self._copies[key])
        return self._copies[key]

    def _constant(self, name: str, kind: str, value: object, *, lowered: bool = True) -> str:
        import numpy as np
        import onnx

        key = (name, f"constant {kind}")
        if key not in self._copies:
            array = self._plan.form.rounded(np.asarray(value)) if lowered else np.asarray(value)
            free = self._names.fresh(f"{name}_{self._plan.form.precision}" if lowered else name)
            self._model.graph.initializer.append(onnx.numpy_helper.from_array(array, free))
            self._copies[key] = free
        return self._copies[key]

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        import onnx

        free = self._names.fresh(output)
        self._model.graph.node.append(onnx.helper.make_node(operator, inputs, [free], name=free, **attributes))
        return free

    def _rename_outputs(self) -> None:
        """Rename tensors produced in another type than the graph's outputs have."""
        for name in sorted(self._source.outputs & set(self._plan.floats)):
            if self._source.producer(name) is not None and (name in self._low_names) is not self._plan.lower_io:
                inner = self._names.fresh(f"{name}_inner")
                self._renamed[name] = inner
                if name in self._low_names:
                    self._low_names.add(inner)

    def _end_outputs(self) -> None:
        """Cast results to the graph's outputs, and set the types of inputs and outputs."""
        import onnx

        to = self._plan.form.element if self._plan.lower_io else FLOAT
        for name, inner in self._renamed.items():
            self._model.graph.node.append(onnx.helper.make_node("Cast", [inner], [name], name=f"{inner}_cast", to=to))
            (self._low_names.add if self._plan.lower_io else self._low_names.discard)(name)
        if self._plan.lower_io:
            for value in (*self._model.graph.input, *self._model.graph.output):
                if value.type.tensor_type.elem_type == FLOAT and self._source.constant(value.name) is None:
                    value.type.tensor_type.elem_type = to

    def _tell_types(self) -> None:
        """Declare the type of every sixteen-bit tensor: not every parser infers it."""
        import onnx

        graph = self._model.graph
        outer = {value.name for value in (*graph.input, *graph.output)}
        remaining = [v for v in graph.value_info if v.name not in self._low_names and v.name not in self._renamed]
        shapes = {v.name: v for v in graph.value_info}
        copies = [onnx.ValueInfoProto() for _ in remaining]
        for copy, value in zip(copies, remaining, strict=True):
            copy.CopyFrom(value)
        for name in dict.fromkeys(o for node in graph.node for o in node.output if o in self._low_names - outer):
            value = onnx.ValueInfoProto()
            if name in shapes:
                value.CopyFrom(shapes[name])
            value.name, value.type.tensor_type.elem_type = name, self._plan.form.element
            copies.append(value)
        del graph.value_info[:]
        graph.value_info.extend(copies)


def halves(model: onnx.ModelProto, form: Format) -> Iterator[str]:
    """Yield the 16-bit tensors of a written graph, including initializers."""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == form.element:
            yield value.name
    yield from (t.name for t in model.graph.initializer if t.data_type == form.element)


def twin(lowered: onnx.ModelProto, form: Format) -> onnx.ModelProto:
    """Return the equivalent FP32 graph; its inputs and outputs are FP32 whatever the lowered graph's are.

    Args:
        lowered: says of every inner tensor in sixteen bits that it is.
        form: that of its sixteen bits.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(lowered)
    graph, rounded = model.graph, set(halves(lowered, form))
    for tensor in graph.initializer:
        if tensor.data_type == form.element:
            tensor.CopyFrom(_widened(tensor))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == form.element:
            value.type.tensor_type.elem_type = FLOAT
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for value in graph.input:
        if value.name in rounded:
            renamed[value.name] = f"{value.name}_rounded"
            nodes += _round(value.name, renamed[value.name], form)
    for node in lowered.graph.node:
        nodes += _in_fp32(node, rounded, renamed, form)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return model


def _in_fp32(
    node: onnx.NodeProto, rounded: Collection[str], renamed: dict[str, str], form: Format
) -> list[onnx.NodeProto]:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [renamed.get(name, name) for name in node.input]
    for attribute in copy.attribute:
        if attribute.HasField("t") and attribute.t.data_type == form.element:
            attribute.t.CopyFrom(_widened(attribute.t))
    if node.op_type == "Cast" and cast_target(node) == form.element:
        next(a for a in copy.attribute if a.name == "to").i = FLOAT
    written = [copy]
    if node.op_type not in MOVES | {"Constant"}:  # what is moved is rounded already
        for place, name in enumerate(node.output):
            if name in rounded:
                copy.output[place] = f"{name}_exact"
                written += _round(copy.output[place], name, form)
    return written


def _round(source: str, target: str, form: Format) -> list[onnx.NodeProto]:
    import onnx

    short = f"{target}_short"
    return [
        onnx.helper.make_node("Cast", [source], [short], name=f"{target}_round", to=form.element),
        onnx.helper.make_node("Cast", [short], [target], name=f"{target}_widen", to=FLOAT),
    ]


def _widened(tensor: onnx.TensorProto) -> onnx.TensorProto:
    import numpy as np
    import onnx

    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
