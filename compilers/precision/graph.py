"""Reading and rewriting an ONNX graph: who makes a tensor, who takes it, what is constant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray


class Graph:
    """A model's main graph, indexed. What is added and removed goes through here, so that the index stays true.

    Every node gets a name: recipes speak of nodes by name.

    Args:
        model: with its weights in memory; changed in place.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.inputs = {v.name for v in model.graph.input}
        self.outputs = {v.name for v in model.graph.output}
        self._initializers = {t.name: t for t in model.graph.initializer}
        self._taken = {*self.inputs, *self._initializers}
        self._name_nodes()
        self._index()

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """The node that makes a tensor; None for inputs and initialisers."""
        return self._producers.get(tensor)

    def consumers(self, tensor: str) -> Sequence[onnx.NodeProto]:
        """The nodes that take a tensor, those included that hold a branch or loop body which takes it."""
        return self._consumers.get(tensor, ())

    def constant(self, tensor: str) -> NDArray[np.generic] | None:
        """The value of an initialiser or of a Constant node; None for what is computed."""
        import onnx

        if tensor in self._initializers:
            return onnx.numpy_helper.to_array(self._initializers[tensor])
        node = self.producer(tensor)
        if node is None or node.op_type != "Constant":
            return None
        value = next((a for a in node.attribute if a.name == "value"), None)
        return None if value is None else onnx.numpy_helper.to_array(value.t)

    def floats(self, tensor: str) -> NDArray[np.float32]:
        """The value of a constant that is known to be there and to be of a floating-point type."""
        import numpy as np

        value = self.constant(tensor)
        assert value is not None, f"{tensor} is no constant"
        return value.astype(np.float32, copy=False)

    def add_initializer(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a constant under a name that is still free; its name."""
        import onnx

        return self.add_tensor(onnx.numpy_helper.from_array(value, name))

    def add_tensor(self, tensor: onnx.TensorProto) -> str:
        """Add a copy of a constant under a name that is still free, made from its own; its name."""
        free = self.fresh(tensor.name)
        self.model.graph.initializer.append(tensor)
        self._initializers[free] = self.model.graph.initializer[-1]
        self._initializers[free].name = free
        return free

    def fresh(self, name: str) -> str:
        """A tensor's or node's name that nothing has, made from this one; taken from now on."""
        free, number = name, 1
        while free in self._taken:
            free, number = f"{name}_{number}", number + 1
        self._taken.add(free)
        return free

    def replace(self, old: Sequence[onnx.NodeProto], new: Sequence[onnx.NodeProto]) -> None:
        """Put nodes where the first of the old ones stood; without old ones, at the front."""
        nodes = self.model.graph.node
        gone = {id(node) for node in old}
        place = next((i for i, node in enumerate(nodes) if id(node) in gone), 0)
        kept = [node for node in nodes if id(node) not in gone]
        changed = [*kept[:place], *new, *kept[place:]]
        copies = [type(node)() for node in changed]
        for copy, node in zip(copies, changed, strict=True):
            copy.CopyFrom(node)
        del nodes[:]
        nodes.extend(copies)
        self._index()

    def prepend(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Put nodes at the front. The others are not copied: constants among them may be large."""
        for node in reversed(nodes):
            self.model.graph.node.insert(0, node)
        self._index()

    def rewrite(self, changes: Mapping[str, Sequence[onnx.NodeProto]]) -> None:
        """Put other nodes in the place of those with these names, all in one pass."""
        import onnx

        written = [new for node in self.model.graph.node for new in changes.get(node.name, (node,))]
        copies = [onnx.NodeProto() for _ in written]
        for copy, node in zip(copies, written, strict=True):
            copy.CopyFrom(node)
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)
        self._index()

    def set_initializer(self, name: str, value: NDArray[np.generic]) -> None:
        """Give a constant another value."""
        import onnx

        self._initializers[name].CopyFrom(onnx.numpy_helper.from_array(value, name))

    def drop_unused_initializers(self) -> None:
        """Forget the constants that nothing takes any more."""
        drop_unused(self.model)
        self._initializers = {t.name: t for t in self.model.graph.initializer}

    def _name_nodes(self) -> None:
        for node in self.model.graph.node:
            self._taken.update(node.output, names_inside(node))
        seen: set[str] = set()
        for node in self.model.graph.node:
            if not node.name or node.name in seen:
                node.name = self.fresh(node.name or f"{node.op_type}_{next(iter(node.output), '')}")
            seen.add(node.name)
        self._taken |= seen

    def _index(self) -> None:
        self._producers: dict[str, onnx.NodeProto] = {}
        consumers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.model.graph.node:
            self._producers.update(dict.fromkeys(filter(None, node.output), node))
            for name in dict.fromkeys((*node.input, *sorted(names_inside(node)))):
                consumers[name].append(node)
        self._consumers = dict(consumers)


def drop_unused(model: onnx.ModelProto) -> None:
    """Forget the initialisers that nothing takes any more, no branch or loop body either."""
    used = {name for node in model.graph.node for name in (*node.input, *names_inside(node))}
    used |= {value.name for value in model.graph.output}
    stored = model.graph.initializer
    for place in reversed(range(len(stored))):
        if stored[place].name not in used:
            del stored[place]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds: branches and loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def names_inside(node: onnx.NodeProto) -> set[str]:
    """Every tensor that the subgraphs of a node mention; those that they do not make come from outside."""
    found: set[str] = set()
    for graph in subgraphs(node):
        found |= {v.name for v in graph.output}
        for inner in graph.node:
            found |= set(inner.input) | names_inside(inner)
    return found
