"""What a file of torch.export.save may hold, for it to be loaded: numbers, and a graph of PyTorch's own operators.

torch.export.load trusts its file: it reads pickles, loads compiled libraries, evaluates the sizes that the graph says
(sympy), makes Python of the names and of the conditions on inputs that it says (exec), and takes any name of torch for
an operator, such as torch.os.system. So a file is looked over before, through the reader that loads it.
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from plansmith.errors import SourceError, first_line

_RECORD = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|data/(?:weights|constants)/model_\w+_config\.json"
    r"|models/model\.json|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|version"
    r"|\.data/(?:version|serialization_id)|\.format_version|\.storage_alignment"
)
_CONFIG = re.compile(r"data/(?:weights|constants)/model_\w+_config\.json")
_PAYLOAD = re.compile(r"weight_\d+|tensor_\d+")
_GRAPH, _EXAMPLES = "models/model.json", "data/sample_inputs/model.pt"

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


def require_harmless(path: Path) -> None:
    """See that loading a file runs no code of whoever wrote it.

    Raises:
        SourceError: it might, or the file is none of torch.export.save.
    """
    from torch.export.pt2_archive._package import PT2ArchiveReader

    try:
        with PT2ArchiveReader(str(path)) as reader:
            found = next(_harmful(reader), "")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(
            f"{path.name} is damaged, or no model that torch.export.save wrote: {first_line(error)}",
            remedy="log it again, with PyTorch 2.10 or newer",
        ) from error
    if found:
        raise SourceError(
            f"{path.name} holds {found}: loading it could run code of whoever wrote it",
            remedy="export the model with tensors and PyTorch's own operators alone, and log it again; or, if you trust"
            " whoever logged it: --allow-pickle",
        )


def _harmful(reader: Any) -> Iterator[str]:
    """What may run code, in words."""
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
    for name, one in config["config"].items():
        if one["use_pickle"] is not False or not _PAYLOAD.fullmatch(one["path_name"]):
            yield f"a pickle ({name[:100]})"


def _operators(whole: Any) -> Iterator[str]:
    """Operators that are not PyTorch's own, wherever the graph or a graph inside of it names one."""
    named = [*_under("target", whole), *_under("as_operator", whole)]
    for name in named:
        if not isinstance(name, str) or not _OPERATOR.fullmatch(name) or _OF_FILES in name:
            yield f"the operator {str(name)[:100]!r}"


def _names(whole: Any) -> Iterator[str]:
    """Names and forms that would be more than that in the Python code which PyTorch makes of them."""
    arguments = chain.from_iterable(_under("forward_arg_names", whole))
    for name in (*_under("name", whole), *_under("as_name", whole), *arguments):
        if isinstance(name, str) and name and not _NAME.fullmatch(name):
            yield f"the name {name[:100]!r}"
    for form in (*_under("in_spec", whole), *_under("out_spec", whole)):
        if not _FORM.fullmatch(form) or "default_factory" in form:
            yield f"{form[:100]!r} as the form of its inputs or outputs"


def _under(key: str, value: Any) -> Iterator[Any]:
    """All that stands under a key, however deep."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name == key and one is not None:
                yield one
            yield from _under(key, one)
    elif isinstance(value, list):
        for one in value:
            yield from _under(key, one)


def is_arithmetic(text: str) -> bool:
    """Whether an expression computes numbers from sizes, and nothing else."""
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
    """Whether a pickle is one of tensors and of plain values; PyTorch reads that without running anything."""
    import torch

    try:
        torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - whatever it is: it is not what was exported with tensors
        return False
    return True
