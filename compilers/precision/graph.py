"""ONNX graph reading and rewriting: producers, consumers and constants of tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray


class Graph:
    """A model's main graph with an index. All additions and removals must go through it, to keep the index valid.

    Every node gets a name: recipes speak of nodes by name.

    Args:
        model: with its weights in memory; changed in place.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.inputs = {v.name for v in model.graph.input}
        self.outputs = {v.name for v in model.graph.output}
        self._initializers = {t.name: t for t in model.graph.initializer}
        self._used_names = {*self.inputs, *self._initializers}
        self._name_nodes()
        self._index()

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that produces a tensor; None for inputs and initializers."""
        return self._producers.get(tensor)

    def consumers(self, tensor: str) -> Sequence[onnx.NodeProto]:
        """Return the nodes that use a tensor, including those whose subgraphs use it."""
        return self._consumers.get(tensor, ())

    def constant(self, tensor: str) -> NDArray[np.generic] | None:
        """Return the value of an initializer or Constant node; None for computed tensors."""
        import onnx

        if tensor in self._initializers:
            return onnx.numpy_helper.to_array(self._initializers[tensor])
        node = self.producer(tensor)
        if node is None or node.op_type != "Constant":
            return None
        value = next((a for a in node.attribute if a.name == "value"), None)
        return None if value is None else onnx.numpy_helper.to_array(value.t)

    def floats(self, tensor: str) -> NDArray[np.float32]:
        """Return the value of a floating-point constant that is known to exist."""
        import numpy as np

        value = self.constant(tensor)
        assert value is not None, f"{tensor} is no constant"
        return value.astype(np.float32, copy=False)

    def add_initializer(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a constant under an unused name, and return the name."""
        import onnx

        return self.add_tensor(onnx.numpy_helper.from_array(value, name))

    def add_tensor(self, tensor: onnx.TensorProto) -> str:
        """Add a copy of a constant under an unused name derived from its own, and return the name."""
        free = self.fresh(tensor.name)
        self.model.graph.initializer.append(tensor)
        self._initializers[free] = self.model.graph.initializer[-1]
        self._initializers[free].name = free
        return free

    def fresh(self, name: str) -> str:
        """Reserve and return an unused tensor or node name derived from this one."""
        free, number = name, 1
        while free in self._used_names:
            free, number = f"{name}_{number}", number + 1
        self._used_names.add(free)
        return free

    def replace(self, old: Sequence[onnx.NodeProto], new: Sequence[onnx.NodeProto]) -> None:
        """Replace nodes, at the position of the first old one; without old ones, insert at the front."""
        nodes = self.model.graph.node
        old_ids = {id(node) for node in old}
        place = next((i for i, node in enumerate(nodes) if id(node) in old_ids), 0)
        remaining = [node for node in nodes if id(node) not in old_ids]
        changed = [*remaining[:place], *new, *remaining[place:]]
        copies = [type(node)() for node in changed]
        for copy, node in zip(copies, changed, strict=True):
            copy.CopyFrom(node)
        del nodes[:]
        nodes.extend(copies)
        self._index()

    def prepend(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Insert nodes at the front. The others are not copied, as constants among them may be large."""
        for node in reversed(nodes):
            self.model.graph.node.insert(0, node)
        self._index()

    def rewrite(self, changes: Mapping[str, Sequence[onnx.NodeProto]]) -> None:
        """Replace the named nodes with others, all in one pass."""
        import onnx

        written = [new for node in self.model.graph.node for new in changes.get(node.name, (node,))]
        copies = [onnx.NodeProto() for _ in written]
        for copy, node in zip(copies, written, strict=True):
            copy.CopyFrom(node)
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)
        self._index()

    def set_initializer(self, name: str, value: NDArray[np.generic]) -> None:
        """Set the value of a constant."""
        import onnx

        self._initializers[name].CopyFrom(onnx.numpy_helper.from_array(value, name))

    def drop_unused_initializers(self) -> None:
        """Delete the constants that are not used any more."""
        drop_unused(self.model)
        self._initializers = {t.name: t for t in self.model.graph.initializer}

    def _name_nodes(self) -> None:
        for node in self.model.graph.node:
            self._used_names.update(node.output, names_inside(node))
        names: set[str] = set()
        for node in self.model.graph.node:
            if not node.name or node.name in names:
                node.name = self.fresh(node.name or f"{node.op_type}_{next(iter(node.output), '')}")
            names.add(node.name)
        self._used_names |= names

    def _index(self) -> None:
        self._producers: dict[str, onnx.NodeProto] = {}
        consumers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.model.graph.node:
            self._producers.update(dict.fromkeys(filter(None, node.output), node))
            for name in dict.fromkeys((*node.input, *sorted(names_inside(node)))):
                consumers[name].append(node)
        self._consumers = dict(consumers)


def drop_unused(model: onnx.ModelProto) -> None:
    """Delete the initializers that neither the graph nor its subgraphs use."""
    used = {name for node in model.graph.node for name in (*node.input, *names_inside(node))}
    used |= {value.name for value in model.graph.output}
    stored = model.graph.initializer
    for place in reversed(range(len(stored))):
        if stored[place].name not in used:
            del stored[place]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of a node: branches and loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def names_inside(node: onnx.NodeProto) -> set[str]:
    """Return every tensor name in a node's subgraphs; those that they do not produce are outer tensors."""
    names: set[str] = set()
    for graph in subgraphs(node):
        names |= {v.name for v in graph.output}
        for inner in graph.node:
            names |= set(inner.input) | names_inside(inner)
    return names


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute's value."""
    import onnx

    match = next((a for a in node.attribute if a.name == name), None)
    return default if match is None else onnx.helper.get_attribute_value(match)
