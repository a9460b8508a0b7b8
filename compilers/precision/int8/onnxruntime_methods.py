"""INT8 for ONNX Runtime on a CPU: which way suits a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8.dynamic import Dynamic
from plansmith.compilers.precision.int8.embedding_tables import Tables
from plansmith.compilers.precision.int8.format import INT8, UINT8
from plansmith.compilers.precision.int8.nodes import (
    Weighted,
    find_heads,
    find_tables,
    find_weighted,
    nodes_kept_by_spec,
    weights_share,
)
from plansmith.compilers.precision.int8.smoothed_graph import Smoothed, again, nothing_to_lower, prepare, smooth
from plansmith.compilers.precision.int8.static import Static, measure
from plansmith.system.cpu import sums_bytes_exactly

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.candidate import Method
    from plansmith.config.precision import LoweringOptions
    from plansmith.data.reference import StoredCases

SMALL_HEAD = 0.02
"""A head with at most this share of the weights stays high: INT8 gains next to nothing there."""


_DRIFT = "inputs with larger activations than the calibration data: static scales saturate there"
_NEIGHBOURS = "one row in batches with others: all rows share a tensor's scale, so that its answer depends on them"
_CLIPS = "inputs with larger activations than the calibration data: they are clipped in {} product(s)"


def methods(
    model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, *, mask_input: str | None = None
) -> list[Method]:
    """Ways to lower a graph for ONNX Runtime on a CPU, the most promising first.

    That is static scales where convolutions prevail, which have no fast kernel with scales per request; and scales per
    request where products do: on all-MiniLM-L6-v2 both are as fast, static scales are closer on text like the
    calibration data (mean cosine 0.9986 against 0.9978), but on single words, where they saturate, the worst cosine was
    0.950 against 0.978.

    Args:
        model: the FP32 graph, with its weights in memory; not changed.
        samples: calibration data.
        options: what a person asks for.
        mask_input: the input that marks padding with 0; None where there is none.

    Raises:
        ExportError: nothing in the graph can be lowered, or only in a way that was not asked for.
    """
    source = _Source(prepare(model), samples, options, mask_input)
    nodes, kept = find_weighted(Graph(source.model))
    makers: tuple[_Maker, ...] = (_dynamic, _static)
    if _is_convolutional(nodes):
        products = [node for node in nodes if node.is_product]
        shares = weights_share(Graph(source.model), products)
        makers = (_static, _dynamic) if sum(shares.values()) > 0.5 else (_static,)
    wanted: tuple[_Maker, ...] = {"dynamic": (_dynamic,), "static": (_static,)}.get(options.quantisation, makers)
    found: list[Method] = [method for maker in wanted if (method := maker(source, nodes, kept)) is not None]
    if not found:
        raise nothing_to_lower(
            INT8,
            "no product or convolution is left that gains from it"
            + ("" if options.quantisation == "auto" else f" with quantisation: {options.quantisation}"),
            "set quantisation: auto, or precision: fp32",
        )
    return found


class _Source:
    """What both ways start from; outliers are migrated once where both lower the same products."""

    def __init__(
        self, model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, mask_input: str | None
    ) -> None:
        self.model, self.samples, self.options, self.mask_input = model, samples, options, mask_input
        self._smoothed: dict[tuple[str, ...], Smoothed] = {}

    def tables(self, high: Collection[str]) -> Tables:
        return Tables({name: table for name, table in find_tables(Graph(self.model)) if name not in high})

    def smoothed(self, nodes: Sequence[Weighted]) -> Smoothed:
        key = tuple(node.name for node in nodes if node.is_product)
        if key not in self._smoothed:
            self._smoothed[key] = smooth(self.model, nodes, self.samples, UINT8, mask_input=self.mask_input)
        return self._smoothed[key]

    def high(self, nodes: Sequence[Weighted], kept: Mapping[str, str]) -> dict[str, str]:
        """What stays high either way, with the reason."""
        graph = Graph(self.model)
        shares = weights_share(graph, nodes)
        heads = {
            name: f"makes an output, and holds only {shares[name]:.1%} of the weights"
            for name in find_heads(graph)
            if shares.get(name, 1.0) <= SMALL_HEAD
        }
        names = [*shares, *(name for name, _ in find_tables(graph))]
        return {**kept, **heads, **nodes_kept_by_spec(names, self.options.keep)}


_Maker = Callable[[_Source, Sequence[Weighted], Mapping[str, str]], "Dynamic | Static | None"]


def _dynamic(source: _Source, nodes: Sequence[Weighted], kept: Mapping[str, str]) -> Dynamic | None:
    convolutions = {n.name: "a convolution gains nothing from scales per request" for n in nodes if not n.is_product}
    high = {**convolutions, **source.high(nodes, kept)}
    lowered, tables = [node for node in nodes if node.name not in high], source.tables(high)
    if not lowered and not tables.lookups:
        return None
    smoothed, bits = source.smoothed(lowered), weight_bits()
    return Dynamic(
        smoothed,
        again(smoothed.model, lowered),
        tables,
        kept=high,
        weight_bits=bits,
        not_validated=(*_untried(bits), *_unsure(smoothed)),
    )


def _static(source: _Source, nodes: Sequence[Weighted], kept: Mapping[str, str]) -> Static | None:
    unfit = {n.name: "ONNX Runtime has no INT8 kernel for it" for n in nodes if n.op == "ConvTranspose"}
    if not _is_convolutional(nodes):
        unfit |= {n.name: "stands alone: its output would be quantised for nobody" for n in nodes if n.op == "Conv"}
    high = {**unfit, **source.high(nodes, kept)}
    lowered = [node for node in nodes if node.name not in high]
    if not lowered:
        return None
    smoothed, bits = source.smoothed(lowered), weight_bits()
    lowered = again(smoothed.model, lowered)
    ranges = measure(smoothed.model, lowered, source.samples, source.options.calibration, mask_input=source.mask_input)
    return Static(
        smoothed,
        lowered,
        source.tables(high),
        ranges,
        kept=high,
        weight_bits=bits,
        not_validated=(*_untried(bits), _DRIFT),
    )


def _is_convolutional(nodes: Sequence[Weighted]) -> bool:
    products = sum(node.is_product for node in nodes)
    return len(nodes) - products > products


@functools.cache
def weight_bits() -> int:
    """8 bits where this machine sums products of bytes exactly, else 7: with those for a factor no pair saturates."""
    return 8 if sums_bytes_exactly() else 7


def _unsure(smoothed: Smoothed) -> tuple[str, ...]:
    """What scales per request leave open."""
    clips = len(smoothed.limits)
    return (_NEIGHBOURS, *([_CLIPS.format(clips)] if clips else []))


def _untried(bits: int) -> tuple[str, ...]:
    if bits == 7:
        return ()
    return ("x86 CPUs without VNNI (before 2019): there, sums of two products of 8 bits may saturate",)
