"""Validation coverage: describes the parts that a validation did not run."""

from __future__ import annotations

from collections.abc import Collection

from plansmith.records.engine import Engine
from plansmith.records.model import Precision

_NOTHING_RAN = "TensorRT: no plan ran here; a graph of the same numbers answered in ONNX Runtime on the CPU"

_TWIN = "its accuracy is that of a graph that computes in FP32 and rounds every result"
UNTRIED_KERNELS = {
    Precision.FP16: f"the FP16 kernels of a GPU: a CPU has next to none, so {_TWIN}",
    Precision.BF16: f"the BF16 kernels: ONNX Runtime has none for a CPU, so {_TWIN}",
    Precision.FP8: "TensorRT's own FP8 kernels and fusions: the pairs were run by ONNX Runtime",
    Precision.INT8: "TensorRT's own INT8 kernels and fusions: the pairs were run by ONNX Runtime",
}
"""What a lowering for a GPU cannot try on a CPU; a plan that runs does."""


def never_ran(engine: Engine, ran: Collection[str]) -> tuple[str, ...]:
    """Return notes on plans of an engine that were not run for a verdict: one line each, or one for all.

    Args:
        engine: has plans by compute capability.
        ran: the compute capabilities of those that did.
    """
    missing = {capability: plan for capability, plan in engine.plans.items() if capability not in ran}
    if missing and not ran:
        return (_NOTHING_RAN,)
    return tuple(
        f"the plan for compute capability {capability} ({plan.gpu.name}): it did not run here"
        for capability, plan in missing.items()
    )
