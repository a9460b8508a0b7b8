"""INT8 for ONNX Runtime on a CPU: which way suits a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8_dynamic import Dynamic
from plansmith.compilers.precision.int8_nodes import (
    Weighted,
    find_heads,
    find_tables,
    find_weighted,
    kept_by_spec,
    weights_share,
)
from plansmith.compilers.precision.int8_smoothed import again, nothing_to_lower, prepare, smooth
from plansmith.compilers.precision.int8_static import Static, measure

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.method import Method
    from plansmith.lowering_options import LoweringOptions
    from plansmith.reference import StoredCases

SMALL_HEAD = 0.02
"""A head with at most this share of the weights stays high: INT8 gains next to nothing there."""


def methods(
    model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, *, mask_input: str | None = None
) -> list[Method]:
    """Ways to lower a graph for ONNX Runtime on a CPU, the most promising first.

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
    convolutional = sum(not node.is_product for node in nodes) > sum(node.is_product for node in nodes)
    makers = (_static, _dynamic) if convolutional else (_dynamic, _static)
    wanted = {"dynamic": (_dynamic,), "static": (_static,)}.get(options.quantisation, makers)
    found: list[Method] = [method for maker in wanted if (method := maker(source, nodes, kept)) is not None]
    if not found:
        raise nothing_to_lower(
            "no product or convolution is left that gains from it"
            + ("" if options.quantisation == "auto" else f" with quantisation: {options.quantisation}"),
            "set quantisation: auto, or precision: fp32",
        )
    return found


@dataclass(frozen=True)
class _Source:
    """What both ways start from."""

    model: onnx.ModelProto
    samples: StoredCases
    options: LoweringOptions
    mask_input: str | None


def _dynamic(source: _Source, nodes: Sequence[Weighted], kept: Mapping[str, str]) -> Dynamic | None:
    graph = Graph(source.model)
    tables = dict(find_tables(graph))
    high = {**kept, **_small_heads(graph, nodes)}
    high |= {n.name: "a convolution gains nothing from scales per request" for n in nodes if not n.is_product}
    high |= kept_by_spec([*(n.name for n in nodes), *tables], source.options.keep)
    lowered = [node for node in nodes if node.name not in high]
    tables = {name: table for name, table in tables.items() if name not in high}
    if not lowered and not tables:
        return None
    smoothed = smooth(source.model, lowered, source.samples, symmetric=False, mask_input=source.mask_input)
    bits = weight_bits()
    return Dynamic(
        smoothed.model,
        again(smoothed.model, lowered),
        tables,
        kept=high,
        settings={
            "activations": "unsigned 8 bits, a scale and zero point per tensor and request",
            "weights": f"{bits} bits, symmetric, a scale per output channel",
            "tables": "8 bits, symmetric, a scale per row",
            "smoothing": smoothed.how,
        },
        weight_bits=bits,
        not_validated=_untried(bits),
    )


def _static(source: _Source, nodes: Sequence[Weighted], kept: Mapping[str, str]) -> Static | None:
    graph = Graph(source.model)
    high = {**kept, **_small_heads(graph, nodes)}
    high |= {n.name: "ONNX Runtime has no INT8 kernel for it" for n in nodes if n.op == "ConvTranspose"}
    high |= kept_by_spec([n.name for n in nodes], source.options.keep)
    lowered = [node for node in nodes if node.name not in high]
    if not lowered:
        return None
    smoothed = smooth(source.model, lowered, source.samples, symmetric=False, mask_input=source.mask_input)
    lowered = again(smoothed.model, lowered)
    ranges = measure(smoothed.model, lowered, source.samples, source.options.calibration, mask_input=source.mask_input)
    bits = weight_bits()
    return Static(smoothed, lowered, ranges, kept=high, weight_bits=bits, not_validated=_untried(bits))


def _small_heads(graph: Graph, nodes: Sequence[Weighted]) -> dict[str, str]:
    shares = weights_share(graph, nodes)
    return {
        name: f"makes an output, and holds only {shares[name]:.1%} of the weights"
        for name in find_heads(graph)
        if shares.get(name, 1.0) <= SMALL_HEAD
    }


@functools.cache
def weight_bits() -> int:
    """8 bits where this machine sums products of bytes exactly (x86 with VNNI, and all others); else 7.

    x86 without VNNI adds pairs of products in 16 bits, which saturates; 7 bits for one of the factors cannot.
    """
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return 8 if not flags or {"avx512_vnni", "avx_vnni"} & set(flags) else 7


def _untried(bits: int) -> tuple[str, ...]:
    if bits == 7:
        return ()
    return ("x86 CPUs without VNNI (before 2019): there, sums of two products of 8 bits may saturate",)
