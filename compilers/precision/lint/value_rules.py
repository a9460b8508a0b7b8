"""Rules that run the graph: what its scales do to the values of real inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.int8.format import FP8, INT8, UINT8, Format
from plansmith.compilers.precision.lint.view import Finding, View, operand

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

# A percentile of 99.9 and an entropy calibration cut off some thousandths.
CLIPPED_SHARE = 0.01
# MinMax over a long tail leaves much of the bulk below the first code; a range that is wrong leaves nearly all.
VANISHED_SHARE = 0.995
_TENSORS_AT_ONCE = 48


@dataclass
class _Count:
    """Over all batches: how many values there were, how many were not zero, clipped, or rounded to zero."""

    values: int = 0
    others: int = 0
    clipped: int = 0
    vanished: int = 0

    def add(self, values: NDArray[np.generic], scale: float, zero: int, form: Format) -> None:
        import numpy as np

        levels = values.astype(np.float32).ravel() / np.float32(scale)
        nonzero = values.ravel() != 0
        self.values += levels.size
        self.others += int(nonzero.sum())
        # Half a step beyond the last code is still rounded, as every other value is.
        smallest, widest = form.step(np.array([0.0, form.largest])) / 2
        self.clipped += int(((levels + zero > form.largest + widest) | (levels + zero < form.least - widest)).sum())
        self.vanished += int((nonzero & (np.abs(levels) < smallest)).sum())


def calibration(view: View) -> Iterator[Finding]:
    """Scales that fit the data: few values beyond the last code, and not nearly all of them below the first."""
    nodes = {node.input[0]: node for node in view.activations() if _parameters(view, node) is not None}
    tensors = list(nodes) if view.feeds else []
    for start in range(0, len(tensors), _TENSORS_AT_ONCE):
        counts = {tensor: _Count() for tensor in tensors[start : start + _TENSORS_AT_ONCE]}
        for values in view.run(list(counts)):
            for tensor, count in counts.items():
                parameters = _parameters(view, nodes[tensor])
                assert parameters is not None
                count.add(values[tensor], *parameters)
        for tensor, count in counts.items():
            yield from _judge(nodes[tensor], count)


def _judge(node: onnx.NodeProto, count: _Count) -> Iterator[Finding]:
    clipped, vanished = count.clipped / max(1, count.values), count.vanished / max(1, count.others)
    if clipped > CLIPPED_SHARE:
        words = f"cuts off {clipped:.1%} of the values of {node.input[0]!r}"
        yield Finding("clipped-calibration", "error", node.name, words, "calibrate on data like this, or with minmax")
    elif vanished > VANISHED_SHARE:
        words = f"rounds {vanished:.1%} of the values of {node.input[0]!r} to zero"
        remedy = "calibrate with percentile or entropy, or keep what follows it high"
        yield Finding("vanished-values", "error", node.name, words, remedy)


def _parameters(view: View, node: onnx.NodeProto) -> tuple[float, int, Format] | None:
    """Scale, zero point and format of a QuantizeLinear to eight bits with one scale."""
    scale = view.constant(operand(node, 1))
    form = {"INT8": INT8, "UINT8": UINT8, "FLOAT8E4M3FN": FP8}.get(view.dtype(node.output[0]))
    zero = view.constant(operand(node, 2)) if operand(node, 2) else None
    if scale is None or scale.size != 1 or form is None or not float(scale.ravel()[0]) > 0:
        return None
    return float(scale.ravel()[0]), 0 if zero is None else int(zero.ravel()[0]), form


RULES = (calibration,)
