"""A user's own ONNX file, made fit to serve: refused where it cannot be, its dims named, its weights beside it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import open_session
from plansmith.config.spec import INPUT_DTYPES
from plansmith.errors import ExportError, SourceError, UsageError, first_line
from plansmith.records.model import ANONYMOUS, Dim, Precision, Tensor
from plansmith.sources import external_data

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_QUANTISING = ("QuantizeLinear", "Integer", "QLinear", "QAttention", "QGemm", "NBits")
_FP8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
_LOST = {Precision.FP32: 1e-3, Precision.FP16: 1e-2, Precision.INT8: 0.1, Precision.FP8: 0.1}
"""How far a sample's answer may move with its neighbours, in parts of the largest."""

_INITIALISERS_ARE_NO_INPUTS = 4
"""The IR version from which on an initialiser need not be listed among the inputs too."""


def require_servable(model: onnx.ModelProto, name: str) -> None:
    """See that inputs and outputs are tensors that Triton carries, and that a CPU can judge what the graph is in.

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
    """What a graph is in: its quantising operators, its weights and zero points, and what it carries tell."""
    import onnx

    quantising = [n for n in onnx_files.all_nodes(model) if any(word in n.op_type for word in _QUANTISING)]
    if quantising:
        fp8 = {onnx.TensorProto.DataType.Value(name) for name in _FP8}
        asked = {a.i for node in quantising for a in node.attribute if a.name == "output_dtype"}
        stored = {t.data_type for t in external_data.tensors(model)}
        return Precision.INT8 if fp8.isdisjoint(asked | stored) else Precision.FP8
    values = (v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output))
    found = {*values, *(t.data_type for t in external_data.tensors(model) if t.dims)}
    if onnx.TensorProto.BFLOAT16 in found:
        return Precision.BF16
    return Precision.FP16 if onnx.TensorProto.FLOAT16 in found else Precision.FP32


def pick_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Keep the outputs of these names, in this order; all when none is named.

    Raises:
        UsageError: the graph has no such output.
    """
    known = {value.name: value for value in model.graph.output}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise UsageError(
            f"outputs: the model has no output {', '.join(unknown)}", remedy=f"its outputs are {', '.join(known)}"
        )
    if names:
        kept = [known[n] for n in names]
        del model.graph.output[:]
        model.graph.output.extend(kept)


def write(model: onnx.ModelProto, inputs: Sequence[Tensor], source: Path, out: Path) -> Path:
    """Write a graph with named dims, and copies of its weights, to a folder; then check it.

    The weights are copied: the user's files may change, and onnx refuses those that have several hard links.

    Args:
        model: read from `source`; changed here.
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
        kept = [value for value in model.graph.input if value.name in {t.name for t in inputs}]
        del model.graph.input[:]
        model.graph.input.extend(kept)
    found = sorted(external_data.locations(model))
    numbered = {place: f"{onnx_files.EXTERNAL_FILE}{f'.{i}' if i else ''}" for i, place in enumerate(found)}
    for place, file in numbered.items():
        shutil.copyfile(source.parent / place, out / file)
    external_data.relocate(model, numbered)
    path = out / onnx_files.MODEL_FILE
    onnx.save(model, path)
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise SourceError(
            f"onnx finds {source.name} wrong: {first_line(error)}",
            remedy="export the model again, with a newer exporter",
        ) from error
    return path


class OriginalGraph:
    """A graph in ONNX Runtime as its author wrote it, no rewrites: what the engine is compared with.

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
        """Run the graph on one batch: names to arrays, in and out."""
        answer = self.run(feed)
        for name, array in answer.items():
            self.shapes.setdefault(name, []).append(array.shape)
        return answer

    def require_independent_samples(
        self, inputs: Sequence[Tensor], feed: Arrays, answer: Arrays, precision: Precision
    ) -> None:
        """See that a sample's answer does not depend on the others of its batch: Triton puts any together.

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
        """As a call, without a note of the shapes."""
        names = [o.name for o in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(feed)), strict=True))

    def close(self) -> None:
        """Give the graph's memory back."""
        del self._session


def name_outputs(
    model: onnx.ModelProto,
    path: Path,
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    axes: Sequence[Mapping[str, int]],
) -> None:
    """Name the dims of the outputs and write the graph again.

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
    import onnx

    known = {o.name: o.shape for o in open_session(path, rewrites="basic").get_outputs()}
    tensors = []
    for tensor in onnx_files.describe_model(model, path).outputs:
        seen = shapes[tensor.name]
        told = known[tensor.name] or [None] * len(seen[0])
        if len({len(s) for s in seen}) > 1 or len(told) != len(seen[0]):
            raise _denied(tensor.name, told, seen[-1])
        dims: list[Dim] = []
        for place, size in enumerate(told):
            sizes = [s[place] for s in seen]
            if isinstance(size, int):
                if set(sizes) != {size}:
                    raise _denied(tensor.name, told, seen[-1])
                dims.append(size)
            else:
                equal = [a for a in axes[0] if all(c[a] == s for c, s in zip(axes, sizes, strict=True))]
                own = size if size and size not in axes[0] else f"{tensor.name}_dim{place}"
                dims.append(size if size in equal else (equal or [own])[0])
        tensors.append(tensor.model_copy(update={"dims": tuple(dims)}))
    onnx_files.name_dims(model, tuple(tensors))
    onnx.save(model, path)


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
    """Give the axes of the inputs their new names wherever else the graph mentions them."""
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _denied(name: str, told: Sequence[Dim | None], seen: Sequence[int]) -> SourceError:
    form = ", ".join(str(d or "?") for d in told)
    return SourceError(
        f"the graph says that output {name!r} has the form [{form}], and it answers {list(seen)}",
        remedy="export the model again: Triton would refuse such answers",
    )
