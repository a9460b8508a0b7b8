"""torch.export results of a module: its inputs, their allowed sizes, and the output structure."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import InputSpec
from plansmith.errors import SourceError, UsageError, first_line
from plansmith.records.model import ANONYMOUS, BATCH, AxisRange, Dim, Tensor
from plansmith.sources.loaded_model import SEQUENCE, InputPlan, LoadedModel
from plansmith.sources.mlflow.module_files import PICKLE, PROGRAM, signed_inputs
from plansmith.sources.random_inputs import is_text, name_inputs, plan_drawn

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    Call = Callable[..., Any]


_LARGEST_UNGUARDED = 2
"""The least size that torch.export writes down of each axis that moves, and does not insist on."""

_RECORD = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|data/(?:weights|constants)/model_\w+_config\.json"
    r"|models/model\.json|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|version"
    r"|\.data/(?:version|serialization_id)|\.format_version|\.storage_alignment"
)
_CONFIG = re.compile(r"data/(?:weights|constants)/model_\w+_config\.json")
_PAYLOAD = re.compile(r"weight_\d+|tensor_\d+")
_OPERATOR = re.compile(
    r"torch\.ops\.(?:aten|prims|torchvision|quantized_decomposed)\.\w+\.\w+"
    r"|torch\.ops\.higher_order\.(?:cond|while_loop|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|_operator\.(?:add|sub|mul|floordiv|truediv|mod|pow|neg|pos|and_|or_|not_|eq|ne|lt|le|gt|ge|getitem)"
    r"|math\.(?:trunc|floor|ceil|sqrt)|torch\.sym_(?:int|float|min|max|not|ite|sqrt)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_FORM = re.compile(r'[\w\s\[\]{}:,.\\"-]*')  # of inputs and outputs, as JSON
_OF_FILES = "from_file"  # an operator of aten that reads any file of this machine
_NUMBER_OR_NAME = re.compile(r"[A-Za-z_]\w*|[-+]?[\d.]+(?:e[-+]?\d+)?")
_FUNCTIONS = {
    *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "PythonMod", "FloorDiv"),
    *("CleanDiv", "CeilDiv", "CeilToInt", "FloorToInt", "TruncToInt", "TruncToFloat", "RoundToInt", "RoundDecimal"),
    *("IntTrueDiv", "FloatTrueDiv", "ToFloat", "PowByNatural", "FloatPow", "ModularIndexing", "Where", "Identity"),
    *("LShift", "RShift", "Equality", "Unequality", "GreaterThan", "StrictGreaterThan", "LessThan", "StrictLessThan"),
    *("Eq", "Ne", "Ge", "Gt", "Le", "Lt", "And", "Or", "Not", "int_oo", "oo", "true", "false", "BooleanTrue"),
    *("BooleanFalse", "L", "math", "torch", "max", "min"),
}
_ATTRIBUTES = {
    *("size", "stride", "storage_offset", "dim", "floor", "ceil", "trunc", "sqrt", "inf", "isnan"),
    *("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite"),
}
_ARITHMETIC = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Load, ast.Subscript, ast.Compare, ast.BoolOp, ast.BinOp),
    *(ast.UnaryOp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


@dataclass(frozen=True)
class Described:
    """Described program: an exported program's interface.

    Args:
        plan: what it is fed with; values are drawn, and sizes are its own.
        arguments: makes the positional and the named ones that it takes of flat tensors.
        answer: what it returns, without values.
    """

    plan: InputPlan
    arguments: Callable[..., Any]
    answer: Any


@dataclass(frozen=True)
class _Size:
    """Dim of an input: its size at the export, and its permitted range; `symbol`: empty if fixed."""

    symbol: str
    exported: int
    least: int
    most: int | None


def save_program(
    module: torch.nn.Module, example_inputs: torch.Tensor | Sequence[torch.Tensor], moving: Any, path: Path
) -> None:
    """Export a module with torch.export and save the program, with zeros in place of its example inputs.

    Args:
        module: exported in evaluation mode, and left in its own.
        example_inputs: its positional arguments, of a batch of two or more.
        moving: the dims that vary, as `torch.export.export` takes `dynamic_shapes`; the first of each input when None.
        path: of the file.

    Raises:
        UsageError: it is no module, the example inputs do not tell what it takes, or torch.export cannot follow it.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"a {type(module).__name__} is no source", remedy="give a reference such as hf:…, a spec, or an nn.Module"
        )
    example_inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    remedy = "give example_inputs=(tensor, …), of a batch of two or more"
    if not example_inputs:
        raise UsageError("a module does not say what it takes", remedy=remedy)
    for number, value in enumerate(example_inputs):
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"example_inputs[{number}] is a {type(value).__name__}, and no tensor", remedy=remedy)
        if moving is None and value.shape[:1] == (1,):
            raise UsageError(
                f"example_inputs[{number}] has a batch of one, at which torch.export fixes the dim", remedy=remedy
            )
    was_training = module.training
    moving = [{0: torch.export.Dim.AUTO} for _ in example_inputs] if moving is None else moving
    try:
        program = torch.export.export(module.eval(), tuple(example_inputs), dynamic_shapes=moving)
    except Exception as error:  # the module is anybody's code
        raise UsageError(
            f"torch.export cannot export the module: {first_line(error)}",
            remedy=f"see that module(*example_inputs) works: forward takes {_parameters(module)}; if it does, look at"
            " torch.export.draft_export(module, example_inputs)",
        ) from error
    finally:
        module.train(was_training)
    program.example_inputs = (tuple(map(torch.zeros_like, example_inputs)), {})
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, path)


def load_program(path: Path) -> ExportedProgram:
    """Load a program file that is allowed to be loaded.

    Raises:
        SourceError: it cannot be read.
    """
    import torch

    try:
        return torch.export.load(path)
    except Exception as error:  # of a file that another release wrote, PyTorch raises anything
        raise SourceError(
            f"PyTorch cannot load {path.name}: {first_line(error)}",
            remedy="export it again from the CPU, with a release of PyTorch that is not newer than the one here",
        ) from error


def describe(program: ExportedProgram, signed: Sequence[Tensor], specs: Mapping[str, InputSpec]) -> Described:
    """Describe what a program takes and returns.

    Args:
        program: as it was loaded.
        signed: its inputs in MLflow's signature; what may vary there and was exported fixed is an axis, too, that the
            program will be found to refuse.
        specs: what the spec says of them.

    Raises:
        SourceError: it takes something else than tensors of NumPy's dtypes.
        UsageError: the spec contradicts it.
    """
    from torch.utils import _pytree as trees

    inputs = dict(_inputs_of(program))
    sizes = {name: [_size(program, dim) for dim in value.shape] for name, value in inputs.items()}
    exported = [
        Tensor(name=name, dtype=_dtype(name, value), dims=tuple(size.symbol or size.exported for size in sizes[name]))
        for name, value in inputs.items()
    ]
    tensors = name_inputs(_named(_with_signed(exported, signed)), specs)
    plan = plan_drawn(tensors, specs, _bounds(program, exported))
    sizes_by_axis = {
        axis: size for tensor in tensors for axis, size in zip(tensor.dims, sizes[tensor.name], strict=True)
    }
    axes = {axis: _range(axis, usual, sizes_by_axis[axis]) for axis, usual in plan.axes.items()}
    limits = {
        axis: most for axis in axes if sizes_by_axis[axis].symbol and (most := sizes_by_axis[axis].most) is not None
    }
    form = program.call_spec.in_spec
    return Described(
        plan=replace(plan, axes=axes, limits=limits, guessed=False, random_values=True),
        arguments=lambda values: trees.tree_unflatten(values, form),
        answer=trees.tree_unflatten(list(_outputs_of(program)), program.call_spec.out_spec),
    )


def _inputs_of(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for number, name in enumerate(program.graph_signature.user_inputs):
        value = values.get(name) if isinstance(name, str) else None
        if not isinstance(value, torch.Tensor):
            raise SourceError(
                f"the exported program takes something else than a tensor as its input {number}",
                remedy="export a module whose forward takes tensors alone",
            )
        yield str(name), value


def _outputs_of(program: ExportedProgram) -> Iterator[Any]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name in program.graph_signature.user_outputs:
        yield values.get(name) if isinstance(name, str) else None


def _dtype(name: str, value: torch.Tensor) -> str:
    import torch

    try:
        return str(torch.empty(0, dtype=value.dtype).numpy().dtype.name)
    except TypeError as error:
        raise SourceError(
            f"the exported program takes {value.dtype} as {name}, which NumPy does not have",
            remedy="export a module that takes float32 and casts it itself",
        ) from error


def _size(program: ExportedProgram, dim: Any) -> _Size:
    """Parse a dim; one computed from others (twice the batch) is dynamic, with its own name."""
    if isinstance(dim, int):
        return _Size("", dim, dim, dim)
    expression = dim.node.expr
    exported = int(dim.node.hint)
    if not expression.is_Symbol:
        return _Size(ANONYMOUS, exported, 0, None)
    bounds = program.range_constraints.get(expression)
    if bounds is None:
        return _Size(str(expression), exported, 0, None)
    most = int(bounds.upper) if bounds.upper.is_Integer else None
    return _Size(str(expression), exported, int(bounds.lower), most)


def _with_signed(exported: Sequence[Tensor], signed: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs, with dims unnamed that were exported fixed but are dynamic in MLflow's signature."""
    if [len(tensor.dims) for tensor in exported] != [len(tensor.dims) for tensor in signed]:
        return list(exported)
    return [
        tensor.model_copy(
            update={
                "dims": tuple(
                    ANONYMOUS if signed_dim == ANONYMOUS and isinstance(dim, int) else dim
                    for dim, signed_dim in zip(tensor.dims, signature.dims, strict=True)
                )
            }
        )
        for tensor, signature in zip(exported, signed, strict=True)
    ]


def _named(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs with names for torch.export's symbols: batch and sequence, or else by first position."""
    names: dict[str, str] = {}
    inside = {dim for tensor in tensors for dim in tensor.dims[1:]}
    for tensor in tensors:
        for place, dim in enumerate(tensor.dims):
            if isinstance(dim, str) and dim != ANONYMOUS and dim not in names:
                names[dim] = _name(tensor, place, is_first=place == 0 and dim not in inside, used_names=names.values())
    return [item.model_copy(update={"dims": tuple(names.get(str(dim), dim) for dim in item.dims)}) for item in tensors]


def _name(tensor: Tensor, place: int, *, is_first: bool, used_names: Any) -> str:
    if is_first and BATCH not in used_names:
        return BATCH
    if place == 1 and is_text(tensor) and SEQUENCE not in used_names:
        return SEQUENCE
    return f"{tensor.name}_dim{place}"


def _bounds(program: ExportedProgram, tensors: Sequence[Tensor]) -> dict[str, int]:
    """Return the exclusive upper bounds of integer inputs: one more than the largest value of the export's example."""
    from torch.utils import _pytree as trees

    examples = trees.tree_leaves(program.example_inputs or ())
    if len(examples) != len(tensors):
        return {}
    return {
        tensor.name: int(example.max()) + 1
        for tensor, example in zip(tensors, examples, strict=True)
        if tensor.dtype in {"int32", "int64"} and example.numel() and int(example.max()) > 0
    }


def _range(axis: Dim, usual: AxisRange, size: _Size) -> AxisRange:
    """Return the sizes of an axis: those that the program permits, around the exported one."""
    if not size.symbol:
        return AxisRange(min=1, opt=size.exported, max=2 * size.exported)
    low = size.least if size.least > _LARGEST_UNGUARDED else usual.min
    high = max(usual.max, size.exported, low)
    high = high if size.most is None else min(high, size.most)
    typical = usual.opt if axis == BATCH else size.exported
    return AxisRange(min=min(low, high), opt=min(max(typical, low), high), max=high)


_GRAPH, _EXAMPLES = "models/model.json", "data/sample_inputs/model.pt"


def require_harmless(path: Path) -> None:
    """Require that loading a file runs no code of its author.

    Raises:
        SourceError: it might, or the file is none of torch.export.save.
    """
    from torch.export.pt2_archive._package import PT2ArchiveReader

    try:
        with PT2ArchiveReader(str(path)) as reader:
            problem = next(_harmful(reader), "")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(
            f"{path.name} is {_other_kind(path) or 'damaged, or no model that torch.export.save wrote'}:"
            f" {first_line(error)}",
            remedy="export the module with PyTorch 2.10 or newer:"
            " torch.export.save(torch.export.export(module, inputs), path)",
        ) from error
    if problem:
        raise SourceError(
            f"{path.name} holds {problem}: loading it could run code of whoever wrote it",
            remedy="export the model with tensors and PyTorch's own operators alone; or, if you trust"
            " whoever logged it: --allow-pickle",
        )


def _other_kind(path: Path) -> str:
    """Describe a file that PyTorch wrote by another way than torch.export.save; empty for anything else."""
    if not zipfile.is_zipfile(path):
        return ""
    with zipfile.ZipFile(path) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
    if any(name.startswith("code/") for name in names):
        return "a module of TorchScript"
    return "a pickle of torch.save, such as a state_dict" if "data.pkl" in names else ""


def _harmful(reader: Any) -> Iterator[str]:
    """Yield what may execute code."""
    for name in reader.get_file_names():
        if not _RECORD.fullmatch(name):
            yield f"the file {name[:200]!r}, which is not numbers alone"
        elif _CONFIG.fullmatch(name):
            yield from _pickled(json.loads(reader.read_string(name)))
    whole = json.loads(reader.read_string(_GRAPH))
    yield from _operators(whole)
    yield from _names(whole)
    for text in (*_under("expr_str", whole), *(whole.get("guards_code") or ())):
        if not is_arithmetic(text):
            yield f"{text[:100]!r} in the place of a size"
    if not _holds_tensors(reader.read_bytes(_EXAMPLES)):
        yield "a pickle of more than tensors as its example inputs"


def _pickled(config: Mapping[str, Any]) -> Iterator[str]:
    for name, entry in config["config"].items():
        if entry["use_pickle"] is not False or not _PAYLOAD.fullmatch(entry["path_name"]):
            yield f"a pickle ({name[:100]})"


def _operators(whole: Any) -> Iterator[str]:
    """Yield operators that are not PyTorch's own, in the graph and its subgraphs."""
    named = [*_under("target", whole), *_under("as_operator", whole)]
    for name in named:
        if not isinstance(name, str) or not _OPERATOR.fullmatch(name) or _OF_FILES in name:
            yield f"the operator {str(name)[:100]!r}"


def _names(whole: Any) -> Iterator[str]:
    """Yield names and tree specs that could inject code into the Python source that PyTorch generates from them."""
    arguments = chain.from_iterable(_under("forward_arg_names", whole))
    for name in (*_under("name", whole), *_under("as_name", whole), *arguments):
        if isinstance(name, str) and name and not _NAME.fullmatch(name):
            yield f"the name {name[:100]!r}"
    for form in (*_under("in_spec", whole), *_under("out_spec", whole)):
        if not _FORM.fullmatch(form) or "default_factory" in form:
            yield f"{form[:100]!r} as the form of its inputs or outputs"


def _under(key: str, value: Any) -> Iterator[Any]:
    """Yield all values of a key, at any depth."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == key and item is not None:
                yield item
            yield from _under(key, item)
    elif isinstance(value, list):
        for item in value:
            yield from _under(key, item)


def is_arithmetic(text: str) -> bool:
    """Whether an expression only computes numbers from sizes."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_arithmetic(node) for node in ast.walk(tree))


def _is_arithmetic(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return bool(_NUMBER_OR_NAME.fullmatch(text))
        case ast.Constant(value=value):
            return isinstance(value, bool | int | float)
        case ast.Name(id=name):
            return name in _FUNCTIONS or bool(re.fullmatch(r"[suz]f?\d+", name))
        case ast.Attribute(attr=name):
            return name in _ATTRIBUTES
    return isinstance(node, _ARITHMETIC)


def _holds_tensors(content: bytes) -> bool:
    """Whether a pickle holds only tensors and plain values, which PyTorch loads without executing code."""
    import torch

    try:
        torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - whatever it is: it is not what was exported with tensors
        return False
    return True


def load(source: Path, *, allow_pickle: bool, inputs: Mapping[str, InputSpec]) -> LoadedModel:
    """Load a program of torch.export, or the module of a folder.

    Args:
        source: the program's file; or a folder with model.pt2 or model.pth, and what MLflow says of it.
        allow_pickle: whether loading may run code of whoever logged it.
        inputs: what the spec says of them.

    Raises:
        SourceError: it cannot be loaded, or not without running code that nobody allowed.
        UsageError: inputs that it does not have.
    """
    path, signed = (source, ()) if source.is_file() else (source / PROGRAM, signed_inputs(source))
    if not path.is_file():
        return _of_pickle(_unpickled(source / PICKLE, allow_pickle=allow_pickle), signed, inputs)
    if not allow_pickle:
        require_harmless(path)
    program = load_program(path)
    described = describe(program, signed, inputs)
    return _live(program.module(), described.arguments, described.plan, described.answer)


def _unpickled(path: Path, *, allow_pickle: bool) -> torch.nn.Module:
    import torch

    if not allow_pickle:
        raise SourceError(
            f"{path.name} is a pickle of the whole model: reading it can run any code",
            remedy="log the model with serialization_format='pt2', or, if you trust whoever logged it: --allow-pickle",
        )
    try:
        module = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # what it unpickles is anybody's code
        raise SourceError(
            f"PyTorch cannot load {path.name}: {first_line(error)}",
            remedy="install the package that its classes are of, or log it with serialization_format='pt2'",
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise SourceError(
            f"{path.name} holds a {type(module).__name__}, and no module of PyTorch", remedy="log the module itself"
        )
    return module.eval().float()


def _of_pickle(module: torch.nn.Module, signed: Sequence[Tensor], specs: Mapping[str, InputSpec]) -> LoadedModel:
    described = signed or tuple(
        Tensor(name=name, dtype=spec.dtype, dims=spec.dims) for name, spec in specs.items() if spec.dtype and spec.dims
    )
    if not described:
        raise UsageError(
            "a pickled module does not say what it takes, and MLflow has no signature of tensors for it",
            remedy="say it in a spec:\n  inputs:\n    x: {dtype: float32, dims: [batch, 4]}",
        )
    plan = replace(plan_drawn(name_inputs(described, specs), specs), guessed=False, random_values=True)
    return _live(module, lambda tensors: (tensors, {}), plan, _answered(module, plan))


def _answered(module: torch.nn.Module, plan: InputPlan) -> Any:
    """Return the module's outputs for its usual inputs.

    Raises:
        SourceError: it fails.
    """
    import torch

    feed = plan.make({axis: sizes.opt for axis, sizes in plan.axes.items()})
    try:
        with torch.inference_mode():
            return module(*(torch.from_numpy(feed[tensor.name]) for tensor in plan.tensors))
    except Exception as error:  # the model is anybody's code
        raise SourceError(
            f"the model fails on the inputs that are described: {first_line(error)}",
            remedy="describe them in a spec (inputs: dtype and dims, in the order of the arguments), or say --shapes",
        ) from error


def _live(module: torch.nn.Module, arguments: Call, plan: InputPlan, answer: Any) -> LoadedModel:
    """Return a module that takes and returns tensors.

    Args:
        module: as it was loaded.
        arguments: makes the positional and the named ones that it takes of flat tensors.
        plan: what it is fed with.
        answer: something that it returns, or of the same form.
    """
    import torch
    from torch.utils import _pytree as trees

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def train(self, mode: bool = True) -> Flat:
            self.training = mode  # and nothing in it: what was exported knows no other mode
            return self

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            positional, named = arguments(tensors)
            leaves = trees.tree_leaves(self.model(*positional, **named))
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    names = output_names(answer)
    if not names:
        raise SourceError("the model returns no tensor", remedy="log one that does")
    return LoadedModel(module=Flat().eval(), inputs=plan, output_names=names, exportable=nullcontext)


def output_names(answer: Any) -> tuple[str, ...]:
    """Return names for the tensors of an answer, by position: keys, fields, or numbers."""
    import torch
    from torch.utils import _pytree as trees

    names = []
    for path, value in trees.tree_flatten_with_path(answer)[0]:
        if isinstance(value, torch.Tensor):
            parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
            name = "_".join(parts)
            names.append(name if name[:1].isalpha() else f"output_{name}".rstrip("_"))
    return tuple(names)


def _parameters(module: torch.nn.Module) -> str:
    """Return the names of what a module takes."""
    return ", ".join(inspect.signature(module.forward).parameters) or "nothing"
