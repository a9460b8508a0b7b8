"""Which inputs and outputs the formats of TensorRT are for.

By the documentation of `tensorrt.TensorFormat`, which the bindings of 10.12 to 11.4 carry themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plansmith.errors import EngineError
from plansmith.records.engine import TensorFormat
from plansmith.records.model import Tensor

DLA_ONLY: frozenset[TensorFormat] = frozenset({"chw16", "dla_linear", "dla_hwc4"})
"""Those of an accelerator that is beside Jetson's GPU."""


@dataclass(frozen=True)
class Takes:
    """The tensors that a format is for: those of some dims and more, and of some types; of any where none is named."""

    rank: int
    dtypes: tuple[str, ...] = ()

    def problem(self, tensor: Tensor) -> str:
        """Why a tensor is none of them; empty where it is one."""
        if len(tensor.dims) < self.rank:
            return f"is for {self.rank} dims and more, and it has {len(tensor.dims)}"
        if self.dtypes and tensor.dtype not in self.dtypes:
            return f"is for {', '.join(self.dtypes)}, and it is {tensor.dtype}"
        return ""


_SIXTEEN_BITS = ("float16", "bfloat16")
TAKES: dict[TensorFormat, Takes] = {
    "chw": Takes(0),
    "chw2": Takes(3, _SIXTEEN_BITS),
    "hwc8": Takes(3, _SIXTEEN_BITS),
    "chw4": Takes(3, ("int8",)),
    "chw32": Takes(3),
    "dhwc8": Takes(4, _SIXTEEN_BITS),
    "cdhw32": Takes(4, ("float16", "int8")),
    "hwc": Takes(3, ("float32", "float16", "int8", "int64", "bfloat16")),
    "hwc16": Takes(3, ("float16", "int8", "float8_e4m3fn")),
    "dhwc": Takes(4, ("float32",)),
}


def require_formats(formats: Mapping[str, TensorFormat], tensors: Sequence[Tensor]) -> None:
    """See that a graph has the tensors that formats are given for, and that they can lie so.

    Args:
        formats: by the name of an input or output; none of `DLA_ONLY`.
        tensors: the graph's inputs and outputs.

    Raises:
        EngineError: names all that do not fit.
    """
    known = {tensor.name: tensor for tensor in tensors}
    found = {name: _problem(wanted, known.get(name)) for name, wanted in sorted(formats.items())}
    problems = [f"{name}: {problem}" for name, problem in found.items() if problem]
    if problems:
        words = problems[0] if len(problems) == 1 else "\n  ".join([f"{len(problems)} problems:", *problems])
        raise EngineError(
            f"tensorrt.formats: {words}",
            remedy=f"leave it out, or take chw; inputs and outputs are {', '.join(known)}",
        )


def _problem(wanted: TensorFormat, tensor: Tensor | None) -> str:
    if tensor is None:
        return "the graph has no such input or output"
    problem = TAKES[wanted].problem(tensor)
    return problem and f"the format {wanted} {problem}"
