"""Model file interfaces: inputs and outputs of ONNX graphs without their weights, and of plans by our manifests."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.errors import RepositoryError, first_line
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import Dim, Tensor
from plansmith.records.release import Manifest
from plansmith.sources import onnx_file
from plansmith.sources.onnx_file import read_skeleton
from plansmith.triton.config.plan_config import is_linear, plan_dims

if TYPE_CHECKING:
    import onnx


_MOST_READ = 8
_REMEDY = "export the model again, or copy the file again from where it was made"

_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class GraphFacts:
    """Facts of an ONNX file: its interface, versions and external files.

    Args:
        inputs: those that have no default, in order; dims are numbers, names, or "" where nothing is said.
        defaults: those that an initialiser gives a default.
        outputs: in order.
        shaped: the inputs and outputs whose rank the file tells; the dims of others mean nothing.
        ir_version: of the file's format.
        opset: of ONNX's own operators; 0 where it imports none.
        foreign: domains of operators that are neither ONNX's nor functions of the file itself.
        external: the files of external weights as the graph names them, and the bytes that each must have.
        values: the names of all that flows through the graph and those inside of it.
    """

    inputs: tuple[Tensor, ...]
    defaults: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shaped: frozenset[str]
    ir_version: int
    opset: int
    foreign: tuple[str, ...]
    external: Mapping[str, int]
    values: frozenset[str]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All inputs and outputs, by name."""
        return {tensor.name: tensor for tensor in (*self.inputs, *self.defaults, *self.outputs)}


@dataclass(frozen=True)
class PlanFact:
    """An input or output of a plan; dynamic `dims` are -1, including the batch."""

    name: str
    is_input: bool
    dtype: str
    dims: tuple[int, ...]
    is_shape: bool
    is_linear: bool


@dataclass(frozen=True)
class PlanFacts:
    """Facts about plans from a release's manifest.

    Args:
        tensors: inputs and outputs, by name.
        profiles: that it was built with; none for fixed shapes, where TensorRT makes one of them.
        versions: of TensorRT, by compute capability.
        stripped: the compute capabilities whose plans are without their weights.
        version_compatible: plans load in newer TensorRT too, with the runtime inside of them, if the server is told to
            run such.
    """

    tensors: Mapping[str, PlanFact]
    profiles: tuple[OptimizationProfile, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    stripped: tuple[str, ...] = ()
    version_compatible: bool = False


def graph_facts(path: Path) -> GraphFacts:
    """Read the facts of an ONNX file; skips embedded weights and does not open external files.

    Args:
        path: of the file.

    Raises:
        RepositoryError: the file cannot be read, or is no ONNX graph.
    """
    try:
        facts = path.stat()
        return _remembered(path.resolve(), facts.st_ino, facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise RepositoryError(f"cannot read {path.name}: {error.strerror}", remedy=_REMEDY) from error


def plan_facts(manifest: Manifest) -> PlanFacts | None:
    """Read the facts about plans from a manifest; None if the release has none."""
    engine = manifest.engine
    if not engine.plans or engine.build is None:
        return None
    build, component, (plan, *_) = engine.build, engine.components["model"], engine.plans.values()
    tensors_by_name = {tensor.name: tensor for tensor in plan.tensors}
    formats = {t.name: t.format for item in engine.plans.values() for t in item.tensors if not is_linear(t.format)}
    valued = {name for profile in build.profiles for name in profile.values}
    tensors = {}
    for tensor in (*component.inputs, *component.outputs):
        own = tensors_by_name.get(tensor.name)
        tensors[tensor.name] = PlanFact(
            name=tensor.name,
            is_input=tensor in component.inputs,
            dtype=tensor.dtype,
            dims=tuple(plan_dims(tensor, own)),
            is_shape=tensor.name in valued or (own is not None and own.is_shape),
            is_linear=build.formats.get(tensor.name, "chw") == "chw" and tensor.name not in formats,
        )
    return PlanFacts(
        tensors=tensors,
        profiles=build.profiles,
        versions={capability: item.tensorrt for capability, item in engine.plans.items()},
        stripped=tuple(c for c, item in engine.plans.items() if build.strip_weights and not item.refitted),
        version_compatible=build.version_compatible and not build.exclude_lean_runtime,
    )


@lru_cache(maxsize=_MOST_READ)
def _remembered(path: Path, *_identity: int) -> GraphFacts:
    import google.protobuf.message

    try:
        return _graph_facts(read_skeleton(path))
    except (ValueError, IndexError, TypeError, KeyError, google.protobuf.message.DecodeError) as error:
        raise RepositoryError(f"{path.name} is no ONNX graph: {first_line(error)}", remedy=_REMEDY) from error


def _graph_facts(model: onnx.ModelProto) -> GraphFacts:
    """Extract the facts of a graph without its weights.

    Raises:
        ValueError: it is not whole.
    """
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise ValueError("it says no version of ONNX")
    initializers = {tensor.name for tensor in model.graph.initializer}
    initializers |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    entries = (*model.graph.input, *model.graph.output)
    return GraphFacts(
        inputs=tuple(_tensor(info) for info in model.graph.input if info.name not in initializers),
        defaults=tuple(_tensor(info) for info in model.graph.input if info.name in initializers),
        outputs=tuple(map(_tensor, model.graph.output)),
        shaped=frozenset(info.name for info in entries if info.type.tensor_type.HasField("shape")),
        ir_version=model.ir_version,
        opset=max((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), default=0),
        foreign=tuple(sorted(_domains(model.graph) - {function.domain for function in model.functions})),
        external=onnx_file.locations(model),
        values=frozenset((*initializers, *(info.name for info in entries), *_outputs(model.graph))),
    )


def _tensor(info: onnx.ValueInfoProto) -> Tensor:
    """An input or output; its dtype is empty where it is no tensor, or NumPy has no name for its type."""
    import onnx

    tensor = info.type.tensor_type
    dtype = ""
    if info.type.HasField("tensor_type") and tensor.elem_type in onnx.TensorProto.DataType.values():
        name = onnx.TensorProto.DataType.Name(tensor.elem_type)
        dtype = {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())
    return Tensor(name=info.name, dtype=dtype, dims=tuple(map(_dim, tensor.shape.dim)))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """A dim as a size or a name; empty where it is unknown, which some exporters write as -1."""
    if not dim.HasField("dim_value"):
        return dim.dim_param
    return dim.dim_value if dim.dim_value >= 0 else ""


def _domains(graph: onnx.GraphProto) -> set[str]:
    return {node.domain for node in _nodes(graph)} - {"", "ai.onnx"}


def _outputs(graph: onnx.GraphProto) -> Iterator[str]:
    return (name for node in _nodes(graph) for name in node.output)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(inner)


@dataclass(frozen=True)
class Source:
    """A parsed Python source file, or its syntax error.

    `tree`: what it says; None where it cannot be parsed, as `problem` tells, in `line`. `newer`: the Python that will
    run it is newer than the one that reads it, and might; `unsure`: nobody says which Python that is.
    """

    tree: ast.Module | None
    problem: str = ""
    line: int = 0
    newer: bool = False
    unsure: bool = False


def read_source(path: Path, python: str | None) -> Source:
    """Parse a Python source file.

    Args:
        path: of the file.
        python: the version that will run it, such as "3.12"; None where nobody says.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return Source(None, "it is larger than any program is")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Source(ast.parse(path.read_bytes()))
    except OSError as error:
        return Source(None, str(error.strerror))
    except SyntaxError as error:
        newer = python is not None and tuple(map(int, python.split(".")[:2])) > sys.version_info[:2]
        return Source(None, error.msg, error.lineno or 0, newer=newer, unsure=python is None)
    except (ValueError, RecursionError, MemoryError) as error:
        return Source(None, str(error))


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, including those in `if`, `try`, `with` and loops."""
    for statement in body:
        yield statement
        for inner in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from top_level(getattr(statement, inner, []))
        for handler in getattr(statement, "handlers", []):
            yield from top_level(handler.body)


def find_class(tree: ast.Module, name: str) -> ast.ClassDef | Literal["elsewhere", "nowhere"]:
    """Return the class that a module binds to a name, or where it may come from."""
    result: ast.ClassDef | Literal["elsewhere", "nowhere"] = "nowhere"
    for statement in top_level(tree.body):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            result = statement
        elif _binds(statement, name):
            result = "elsewhere"
    return result


def methods(of: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None]:
    """Return the functions defined in a class body, by name; None for names bound to anything else."""
    definitions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None] = {}
    for statement in top_level(of.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            definitions[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            definitions |= dict.fromkeys(_names(statement))
    return definitions


def takes(function: ast.FunctionDef | ast.AsyncFunctionDef, count: int, *, on_class: bool = False) -> bool:
    """Whether a method accepts so many positional arguments.

    Args:
        function: the method.
        count: of arguments, without the instance or class.
        on_class: it is called on the class, where a plain function gets no instance.
    """
    names = {ast.unparse(decorator) for decorator in function.decorator_list}
    if names - {"staticmethod", "classmethod"}:
        return True
    bound = "staticmethod" not in names and (not on_class or "classmethod" in names)
    arguments, total = function.args, count + bound
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = len(positional) - len(arguments.defaults)
    required = [a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    return not required and needed <= total and (arguments.vararg is not None or total <= len(positional))


def _binds(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.ImportFrom | ast.Import):
        return any((alias.asname or alias.name) in {name, "*"} for alias in statement.names)
    return isinstance(statement, ast.Assign | ast.AnnAssign) and name in _names(statement)


def _names(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
