"""ONNX import: makes a user's ONNX file fit to serve or refuses it; names its dims, externalizes its weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.precision.graph import Graph, subgraphs
from plansmith.config.spec import INPUT_DTYPES, DescribedInput
from plansmith.errors import ExportError, SourceError, UsageError, first_line
from plansmith.records.model import ANONYMOUS, Dim, Precision, Tensor
from plansmith.sources import onnx_file
from plansmith.sources.loaded_model import NCHW, NHWC

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


_QUANTISING = ("QuantizeLinear", "Integer", "QLinear", "QAttention", "QGemm", "NBits")
_FP8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
_LOST = {Precision.FP32: 1e-3, Precision.FP16: 1e-2, Precision.INT8: 0.1, Precision.FP8: 0.1}
"""How far a sample's answer may move with its neighbours, in parts of the largest."""

_INITIALISERS_ARE_NO_INPUTS = 4
"""The IR version from which on an initialiser need not be listed among the inputs too."""


def require_servable(model: onnx.ModelProto, name: str) -> None:
    """Require that inputs and outputs are tensors that Triton supports, in a precision that a CPU can validate.

    Raises:
        SourceError: there are no inputs; or an input or output is no tensor, or of a dtype or rank that no request
            can hold.
        ExportError: the weights are in BF16.
    """
    stored = {t.name for t in model.graph.initializer}
    if all(value.name in stored for value in model.graph.input):
        raise SourceError(
            f"{name} has no inputs, so that its answer is always the same and no request could ask for it",
            remedy="export it with what varies as an input",
        )
    for role, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            if value.name not in stored:
                _require_tensor(value, role, name)
    if detect_precision(model) is Precision.BF16:
        raise ExportError(
            f"{name} has weights in BF16, for which ONNX Runtime has no kernels on a CPU: nothing here could answer for"
            " it, or judge what is made of it",
            remedy="export it in FP32, and ask for --precision bf16",
        )


def detect_precision(model: onnx.ModelProto) -> Precision:
    """Detect a graph's precision from its Q/DQ operators, its weights and zero points, and its tensor types."""
    import onnx

    quantising = [n for n in onnx_files.all_nodes(model) if any(word in n.op_type for word in _QUANTISING)]
    if quantising:
        fp8 = {onnx.TensorProto.DataType.Value(name) for name in _FP8}
        output_types = {a.i for node in quantising for a in node.attribute if a.name == "output_dtype"}
        stored = {t.data_type for t in onnx_file.tensors(model)}
        return Precision.INT8 if fp8.isdisjoint(output_types | stored) else Precision.FP8
    values = (v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output))
    types = {*values, *(t.data_type for t in onnx_file.tensors(model) if t.dims)}
    if onnx.TensorProto.BFLOAT16 in types:
        return Precision.BF16
    return Precision.FP16 if onnx.TensorProto.FLOAT16 in types else Precision.FP32


def pick_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Keep only the named outputs, in this order; all if none is named.

    Raises:
        UsageError: the graph has no such output.
    """
    outputs_by_name = {value.name: value for value in model.graph.output}
    unknown = [n for n in names if n not in outputs_by_name]
    if unknown:
        raise UsageError(
            f"outputs: the model has no output {', '.join(unknown)}",
            remedy=f"its outputs are {', '.join(outputs_by_name)}",
        )
    if names:
        selection = [outputs_by_name[n] for n in names]
        del model.graph.output[:]
        model.graph.output.extend(selection)


def write(model: onnx.ModelProto, inputs: Sequence[Tensor], source: Path, out: Path) -> Path:
    """Write a graph with named dynamic axes, and copies of its weights, to a folder, and check it.

    The weights are copied: the user's files may change, and onnx refuses those that have several hard links.

    Args:
        model: read from `source`, with its weights or without; changed here.
        inputs: the graph's inputs with a name for every dim that moves.
        source: the file that the graph was read from.
        out: an empty folder.

    Raises:
        SourceError: the checker of onnx refuses the graph.
    """
    import onnx

    before = {t.name: t for t in onnx_files.describe_model(model, source).inputs}
    # An input whose rank the graph does not know has no dims to rename.
    pairs = [pair for t in inputs for pair in zip(before[t.name].dims, t.dims, strict=False)]
    _rename_dims(model, {str(old): str(new) for old, new in pairs if old != ANONYMOUS})
    onnx_files.name_dims(model, tuple(inputs))
    if model.ir_version >= _INITIALISERS_ARE_NO_INPUTS:
        graph_inputs = [value for value in model.graph.input if value.name in {t.name for t in inputs}]
        del model.graph.input[:]
        model.graph.input.extend(graph_inputs)
    places = sorted(onnx_file.locations(model))
    numbered = {place: f"{onnx_files.EXTERNAL_FILE}{f'.{i}' if i else ''}" for i, place in enumerate(places)}
    for place, file in numbered.items():
        shutil.copyfile(source.parent / place, out / file)
    onnx_file.relocate(model, numbered)
    path = out / onnx_files.MODEL_FILE
    onnx_file.write_graph(model, source, path)
    judged = onnx_file.read_skeleton(path)
    try:
        onnx_files.check_skeleton(judged)
        onnx.shape_inference.infer_shapes(judged, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise SourceError(
            f"onnx finds {source.name} wrong: {first_line(error)}",
            remedy="export the model again, with a newer exporter",
        ) from error
    return path


class OriginalGraph:
    """The original graph in ONNX Runtime, without graph optimizations: the reference for the engine.

    Args:
        path: the graph.

    Attributes:
        shapes: of every output, in every answer so far.

    Raises:
        SourceError: ONNX Runtime refuses the graph.
    """

    def __init__(self, path: Path) -> None:
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        try:
            self._session = open_session(path, rewrites="none")
        except Exception as error:
            raise SourceError(
                f"ONNX Runtime refuses the graph: {first_line(error).rpartition(f'{path} failed:')[2]}",
                remedy="export it with operators and an opset that ONNX Runtime has",
            ) from error

    def __call__(self, feed: Arrays) -> dict[str, NDArray[np.generic]]:
        """Run the graph on one batch of arrays by name."""
        answer = self.run(feed)
        for name, array in answer.items():
            self.shapes.setdefault(name, []).append(array.shape)
        return answer

    def require_independent_samples(
        self, inputs: Sequence[Tensor], feed: Arrays, answer: Arrays, precision: Precision
    ) -> None:
        """Require that a sample's outputs do not depend on the rest of its batch, as Triton batches any requests.

        What the precision loses may: kernels differ between batches, and scales that are computed for each request
        are those of the whole batch.

        Raises:
            UsageError: it does; the first dim is something else.
        """
        import numpy as np

        batch = len(next(iter(feed.values())))
        alone = self.run({name: array[:1] for name, array in feed.items()})
        for name, array in answer.items():
            if array.dtype.kind != "f" or array.shape[0] != batch or alone[name].shape[0] != 1:
                continue
            lost = _LOST[precision] * float(np.abs(array[np.isfinite(array)]).max(initial=0))
            row = array[:1]
            if alone[name].shape == row.shape and not np.allclose(alone[name], row, 0, lost, equal_nan=True):
                dims = [f"    {t.name}: {{dims: [{', '.join(['rows', *map(str, t.dims[1:])])}]}}" for t in inputs]
                raise UsageError(
                    f"the first dim of the inputs is no batch: a sample's {name!r} depends on the samples beside it",
                    remedy="\n".join(["give that dim another name than batch in the spec:", "  inputs:", *dims]),
                )

    def run(self, feed: Arrays) -> dict[str, NDArray[np.generic]]:
        """Run the graph as `__call__`, without recording the shapes."""
        names = [o.name for o in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(feed)), strict=True))

    def close(self) -> None:
        """Close the session to free its memory."""
        del self._session


def name_outputs(
    model: onnx.ModelProto,
    path: Path,
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    axes: Sequence[Mapping[str, int]],
) -> None:
    """Name the dims of the outputs, and write the graph again.

    A dim that ONNX Runtime knows to be fixed is; one that always equals an axis of the inputs is that axis;
    any other keeps its name, or gets one of its own.

    Args:
        model: the graph, as `write` left it.
        path: where it lies.
        shapes: of every output, in every case.
        axes: the sizes of the inputs' axes, in every case.

    Raises:
        SourceError: an output has a shape that the graph denies.
    """
    graph_shapes = {o.name: o.shape for o in open_session(path, rewrites="basic").get_outputs()}
    tensors = []
    for tensor in onnx_files.describe_model(model, path).outputs:
        actual = shapes[tensor.name]
        declared = graph_shapes[tensor.name] or [None] * len(actual[0])
        if len({len(s) for s in actual}) > 1 or len(declared) != len(actual[0]):
            raise _denied(tensor.name, declared, actual[-1])
        dims: list[Dim] = []
        for place, size in enumerate(declared):
            sizes = [s[place] for s in actual]
            if isinstance(size, int):
                if set(sizes) != {size}:
                    raise _denied(tensor.name, declared, actual[-1])
                dims.append(size)
            else:
                equal = [a for a in axes[0] if all(c[a] == s for c, s in zip(axes, sizes, strict=True))]
                own = size if size and size not in axes[0] else f"{tensor.name}_dim{place}"
                dims.append(size if size in equal else (equal or [own])[0])
        tensors.append(tensor.model_copy(update={"dims": tuple(dims)}))
    onnx_files.name_dims(model, tuple(tensors))
    named = path.with_name("named.onnx")
    onnx_file.write_graph(model, path, named)
    named.replace(path)


def _require_tensor(value: onnx.ValueInfoProto, role: str, name: str) -> None:
    import onnx

    kind = value.type.WhichOneof("value") or "value without a type"
    pick = " or leave it out with `outputs`" if role == "output" else ""
    if kind != "tensor_type":
        raise SourceError(
            f"{role} {value.name!r} of {name} is a {kind.removesuffix('_type').replace('_', ' ')}, and Triton"
            " carries tensors only",
            remedy=f"export it as a tensor{pick} (scikit-learn: options={{'zipmap': False}})",
        )
    element = value.type.tensor_type.elem_type
    if element == onnx.TensorProto.UNDEFINED or _numpy_name(element) not in INPUT_DTYPES:
        raise SourceError(
            f"{role} {value.name!r} of {name} has dtype {onnx.TensorProto.DataType.Name(element).lower()},"
            " which cannot be asked and compared",
            remedy=f"cast it inside the model{pick}",
        )
    if value.type.tensor_type.HasField("shape") and not value.type.tensor_type.shape.dim:
        raise SourceError(
            f"{role} {value.name!r} of {name} is a scalar, which Triton cannot carry",
            remedy=f"give it one dim of size 1 inside the model{pick}",
        )


def _numpy_name(element: int) -> str:
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(element).name


def _rename_dims(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename the inputs' dynamic axes everywhere else in the graph."""
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _denied(name: str, declared: Sequence[Dim | None], actual: Sequence[int]) -> SourceError:
    form = ", ".join(str(d or "?") for d in declared)
    return SourceError(
        f"the graph says that output {name!r} has the form [{form}], and it answers {list(actual)}",
        remedy="export the model again: Triton would refuse such answers",
    )


def take_served_form(model: onnx.ModelProto, changes: Mapping[str, DescribedInput]) -> None:
    """Change the types of graph inputs, and insert conversions after them.

    The inputs keep their names, and all that took them, branches and loop bodies included, takes what was converted.

    Args:
        model: changed; its weights are not looked at, and may lie in files beside it.
        changes: from `served_form.changes_of`, for inputs that can be served so.

    Raises:
        UsageError: such an input is an output as well.
    """
    graph = Graph(model)
    conversions: list[onnx.NodeProto] = []
    for value in model.graph.input:
        change = changes.get(value.name)
        if change is None:
            continue
        _require_no_output(value.name, change, graph)
        nodes = _conversions(value.name, change, graph)
        _rename(model, graph, value.name, nodes[-1].output[0])
        _change_type(value.type.tensor_type, change)
        conversions += nodes
    graph.prepend(conversions)


def _require_no_output(name: str, change: DescribedInput, graph: Graph) -> None:
    if name in graph.outputs:
        key = "io_dtypes" if change.served_dtype else "io_layouts"
        raise UsageError(
            f"{key}: {name} is an output of the graph, too, and cannot have two forms",
            remedy=f"leave {name} out of `{key}`",
        )


def _conversions(name: str, change: DescribedInput, graph: Graph) -> list[onnx.NodeProto]:
    """The nodes that convert an input to the form the graph takes; the last one's output is that form."""
    import onnx

    nodes: list[onnx.NodeProto] = []
    if change.layout:
        output = graph.fresh(f"{name}_nchw")
        nodes.append(
            onnx.helper.make_node("Transpose", [name], [output], name=graph.fresh(f"{output}_node"), perm=NCHW)
        )
        name = output
    if change.served_dtype:
        output = graph.fresh(f"{name}_int64")
        kind = onnx.TensorProto.INT64
        nodes.append(onnx.helper.make_node("Cast", [name], [output], name=graph.fresh(f"{output}_node"), to=kind))
    return nodes


def _rename(model: onnx.ModelProto, graph: Graph, old: str, new: str) -> None:
    """Rename a tensor in all its consumers."""
    for node in graph.consumers(old):
        _rename_in(node, old, new)
    for value in model.graph.value_info:
        if value.name == old:
            value.name = new


def _rename_in(node: onnx.NodeProto, old: str, new: str) -> None:
    for place, name in enumerate(node.input):
        if name == old:
            node.input[place] = new
    for inner in subgraphs(node):
        own = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
        own |= {name for maker in inner.node for name in maker.output}
        if old in own:
            continue
        for value in inner.output:
            if value.name == old:
                value.name = new
        for child in inner.node:
            _rename_in(child, old, new)


def _change_type(kind: onnx.TypeProto.Tensor, change: DescribedInput) -> None:
    import onnx

    if change.served_dtype:
        kind.elem_type = onnx.TensorProto.INT32
    if change.layout and kind.shape.dim:  # there are none where the graph does not know the rank
        dims = [
            onnx.TensorShapeProto.Dimension.FromString(dimension.SerializeToString()) for dimension in kind.shape.dim
        ]
        del kind.shape.dim[:]
        kind.shape.dim.extend(dims[axis] for axis in NHWC)
