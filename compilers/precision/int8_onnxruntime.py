"""INT8 for ONNX Runtime on a CPU: which way suits a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping
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
from plansmith.compilers.precision.int8_smoothed import again, prepare, smooth

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
    """
    prepared = prepare(model)
    nodes, kept = find_weighted(Graph(prepared))
    return [_dynamic(prepared, nodes, kept, samples, options, mask_input)]


def _dynamic(
    model: onnx.ModelProto,
    nodes: list[Weighted],
    kept: Mapping[str, str],
    samples: StoredCases,
    options: LoweringOptions,
    mask_input: str | None,
) -> Dynamic:
    graph = Graph(model)
    tables = dict(find_tables(graph))
    kept = {
        **kept,
        **{n.name: "a convolution gains nothing from scales per request" for n in nodes if not n.is_product},
    }
    shares = weights_share(graph, nodes)
    kept |= {
        name: f"makes an output, and holds only {shares[name]:.1%} of the weights"
        for name in find_heads(graph)
        if shares.get(name, 1.0) <= SMALL_HEAD
    }
    kept |= kept_by_spec({*shares, *tables}, options.keep)
    lowered = [node for node in nodes if node.name not in kept]
    smoothed = smooth(model, lowered, samples, symmetric=False, mask_input=mask_input)
    bits = weight_bits()
    return Dynamic(
        smoothed.model,
        again(smoothed.model, lowered),
        {name: table for name, table in tables.items() if name not in kept},
        kept=kept,
        settings={
            "activations": "unsigned 8 bits, a scale and zero point per tensor and request",
            "weights": f"{bits} bits, symmetric, a scale per output channel",
            "tables": "8 bits, symmetric, a scale per row",
            "smoothing": smoothed.how,
        },
        weight_bits=bits,
        not_validated=_untried(bits),
    )


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
