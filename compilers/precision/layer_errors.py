"""Which node brings the error in: a lowered graph beside FP32, node by node."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.activations import stream
from plansmith.compilers.precision.calibration import Positions, find_positions, without_padding
from plansmith.compilers.precision.graph import Graph
from plansmith.records.model import LayerError

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

AT_ONCE = 32
"""Tensors of each graph that are held at the same time, for one batch."""

BEST_DB, WORST_DB = 150.0, -100.0
"""What stands for no error at all, and for NaN, Inf or an answer that has nothing to do with the right one."""


def compare_layers(
    reference: onnx.ModelProto,
    lowered: onnx.ModelProto,
    feeds: Sequence[Arrays],
    nodes: Mapping[str, bool],
    *,
    mask_input: str | None = None,
) -> list[LayerError]:
    """The error behind each node, in the graph's order; nodes whose output the lowered graph has no more are left out.

    An error that is a constant factor of one channel is none: recipes move scales from one layer into the next. Nor is
    what stands at padding: recipes cut it off on purpose, as it reaches no answer.

    Args:
        reference: the FP32 graph.
        lowered: the same graph lowered, as one that ONNX Runtime runs here.
        feeds: inputs, a batch each.
        nodes: names in the reference, with whether each one is lowered.
        mask_input: the input that marks padding with 0; None where there is none.
    """
    there = {output for node in lowered.graph.node for output in node.output}
    asked = {node.output[0]: node for node in reference.graph.node if node.name in nodes and node.output[0] in there}
    positions = find_positions(reference, feeds, list(asked), mask_input)
    found = []
    for start in range(0, len(asked), AT_ONCE):
        tensors = list(asked)[start : start + AT_ONCE]
        noise = dict.fromkeys(tensors, 0.0)
        signal = dict.fromkeys(tensors, 0.0)
        pairs = zip(stream(reference, feeds, tensors), stream(lowered, feeds, tensors), strict=True)
        for feed, (right, candidate) in zip(feeds, pairs, strict=True):
            mask = feed[mask_input].astype(bool) if mask_input in feed else None  # type: ignore[index]
            for tensor in tensors:
                n, s = _noise_and_signal(right[tensor], candidate[tensor], mask, positions[tensor])
                noise[tensor] += n
                signal[tensor] += s
        found += [
            LayerError(
                node=asked[tensor].name,
                op_type=asked[tensor].op_type,
                lowered=nodes[asked[tensor].name],
                sqnr_db=decibels(signal[tensor], noise[tensor]),
            )
            for tensor in tensors
        ]
    return found


@dataclass(frozen=True)
class ErrorSource:
    """A node that brings error in.

    Args:
        node: its name.
        before: what reaches it in dB, `BEST_DB` for what has no error; None, as `behind`, where nothing was measured.
        behind: what is there once it has computed.
        shown_by: the node in FP32 where it shows; empty: the node itself.
    """

    node: str
    before: float | None = None
    behind: float | None = None
    shown_by: str = ""

    @property
    def added(self) -> float:
        """Noise by signal that was not there before."""
        return -math.inf if self.behind is None or self.before is None else _noise(self.behind) - _noise(self.before)

    @property
    def words(self) -> str:
        """As a reason to keep the node high."""
        if self.behind is None or self.before is None:
            return "cannot be compared with FP32, and what can was not enough"
        place = f"at {self.shown_by}, which takes what it makes" if self.shown_by else "here"
        return f"brought too much error in: from {self.before:.0f} to {self.behind:.0f} dB {place}"


def rank_causes(reference: onnx.ModelProto, errors: Sequence[LayerError], among: Collection[str]) -> list[ErrorSource]:
    """Nodes by how much error each one adds to what reaches it, the worst first.

    A node that is not lowered adds none by itself. What it shows came in with its data, which the nodes before it may
    have stored in few bits, so that these are named for it.

    Args:
        reference: the FP32 graph.
        errors: of its nodes, as `compare_layers` gives them.
        among: names of the lowered nodes, which may be named; those without a measured error come last.
    """
    behind = {error.node: error.sqnr_db for error in errors}
    reached: dict[str, float] = {}  # by tensor: the worst of the nearest measured nodes before it, in dB
    makers: dict[str, frozenset[str]] = {}  # by tensor: the nearest lowered nodes before it
    worst = {name: ErrorSource(name) for name in among}
    for node in Graph(reference).model.graph.node:
        before = min((reached.get(name, BEST_DB) for name in node.input), default=BEST_DB)
        feeders = frozenset[str]().union(*(makers.get(name, ()) for name in node.input))
        lowered = node.name in worst
        if node.name in behind:
            for name in (node.name,) if lowered else feeders:
                cause = ErrorSource(name, before, behind[node.name], "" if lowered else node.name)
                worst[name] = max(worst[name], cause, key=lambda c: c.added)
        reached.update(dict.fromkeys(node.output, behind.get(node.name, before)))
        makers.update(dict.fromkeys(node.output, frozenset({node.name}) if lowered else feeders))
    return sorted(worst.values(), key=lambda cause: -cause.added)


def decibels(signal: float, noise: float) -> float:
    """Signal to noise, both as sums of squares, in dB; kept between `WORST_DB` and `BEST_DB`."""
    if not math.isfinite(noise) or signal <= 0.0 < noise:
        return WORST_DB
    if noise <= 0.0:
        return BEST_DB
    return min(BEST_DB, max(WORST_DB, 10 * math.log10(signal / noise)))


def _noise(db: float) -> float:
    """Noise by signal."""
    return float(10 ** (-db / 10))


def _noise_and_signal(
    right: NDArray[np.generic],
    candidate: NDArray[np.generic],
    mask: NDArray[np.bool_] | None,
    positions: Positions,
) -> tuple[float, float]:
    """Sums of squares: of what no factor of a channel explains, and of the right values. Channels: see `_channels`."""
    import numpy as np

    if right.shape != candidate.shape:
        return math.inf, 1.0
    right, candidate = (without_padding(values, mask, positions) for values in (right, candidate))
    if not np.isfinite(candidate).all():
        return math.inf, 1.0
    x, y = _channels(right), _channels(candidate)
    xx, yy, xy = (np.einsum("ij,ij->j", a, b) for a, b in ((x, x), (y, y), (x, y)))
    explained = np.divide(xy**2, yy, out=np.zeros_like(xy), where=yy > 0)
    return float(np.maximum(xx - explained, 0).sum()), float(xx.sum())


def _channels(array: NDArray[np.generic]) -> NDArray[np.float64]:
    """As [elements, channels]: the second axis holds the channels of images (four axes or more), else the last one."""
    import numpy as np

    if array.ndim < 2:
        return array.astype(np.float64).reshape(-1, 1)
    moved = np.moveaxis(array, 1, -1) if array.ndim >= 4 else array
    return moved.astype(np.float64).reshape(-1, moved.shape[-1])
