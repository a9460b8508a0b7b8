"""Numbers only: how far a candidate's tensor is from the reference's, and whether that is too far.

Errors are judged relative to the output's own magnitude, its root mean square over the elements that
count, so that one tolerance serves logits of 20 and embeddings of 0.05 alike. Everything is computed in
float64, one sample at a time; what is kept beside it is one float32 error an element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plansmith.reports import OutputComparison, Tolerance
from plansmith.types import Precision, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

ERROR_QUANTILE = 0.99

# FP32 against FP32 differs by the order of summation alone: at worst 2e-5, 4e-6 and 1e-12 (one minus the
# cosine) over eleven models of ten families. A wrong epsilon, a flipped bit, a dropped bias or an ignored
# mask is at 1e-3 and above; tests/gate holds both sides.
TOLERANCES = {
    Precision.FP32: Tolerance(max_relative=1e-4, quantile_relative=2e-5, min_cosine=0.99999999),
}

_ZERO_DEVIATION = 1e-6
_LARGEST = float(np.finfo(np.float32).max)


def compare_output(
    case: str,
    output: str,
    reference: NDArray[np.generic],
    candidate: NDArray[np.generic],
    tolerance: Tolerance,
    *,
    valid: NDArray[np.bool_] | None = None,
) -> OutputComparison:
    """Compare one output of one case.

    Args:
        case: name of the case, for the report.
        output: name of the output.
        reference: what the source model answered, batch first.
        candidate: what the engine answered.
        tolerance: what is allowed.
        valid: which positions count, shaped like the leading axes of the output ([batch, sequence]);
            the rest is padding, whose values mean nothing. None: all count.
    """
    shape = tuple(int(n) for n in candidate.shape)
    if reference.shape != candidate.shape:
        return _incomparable(case, output, shape, f"shape is {_text(shape)}, expected {_text(reference.shape)}")
    if reference.dtype != candidate.dtype:
        return _incomparable(case, output, shape, f"dtype is {candidate.dtype}, expected {reference.dtype}")
    if reference.dtype.kind in "iub":  # indices, counts and flags are right or wrong
        tolerance = tolerance.model_copy(update={"max_relative": 0.0, "quantile_relative": 0.0})
    moments, errors = [], []
    for r, c in _samples(reference, candidate, valid):
        if not np.isfinite(c).all():
            return _incomparable(case, output, shape, "NaN or Inf in the candidate's answer")
        if not np.isfinite(r).all():
            return _incomparable(case, output, shape, "NaN or Inf in the reference's answer")
        expected, found = r.astype(np.float64).ravel(), c.astype(np.float64).ravel()
        moments.append((float(expected @ expected), float(found @ found), float(expected @ found)))
        errors.append(np.abs(found - expected).clip(max=_LARGEST).astype(np.float32))
    elements = sum(e.size for e in errors)
    if elements == 0:
        return _incomparable(case, output, shape, "no element counts: everything is padding")
    every = np.concatenate(errors)
    magnitude = math.sqrt(sum(rr for rr, _, _ in moments) / elements) or float(np.finfo(np.float32).tiny)
    maximum, quantile = float(every.max()), float(np.quantile(every, ERROR_QUANTILE))
    cosine = min(_cosine(*m) for m, e in zip(moments, errors, strict=True) if e.size)
    measured = OutputComparison(
        case=case,
        output=output,
        shape=shape,
        elements=elements,
        magnitude=magnitude,
        max_absolute=maximum,
        max_relative=maximum / magnitude,
        quantile_absolute=quantile,
        quantile_relative=quantile / magnitude,
        min_cosine=cosine,
        variance=_variance_over_samples(candidate, valid),
        failures=(),
    )
    return measured.model_copy(update={"failures": tuple(_breaches(measured, tolerance))})


def _breaches(measured: OutputComparison, tolerance: Tolerance) -> Iterator[str]:
    """What is outside the tolerance, each in words."""
    if measured.max_relative > tolerance.max_relative:
        yield (
            f"maximum error relative to the output's magnitude is {measured.max_relative:.3g},"
            f" allowed {tolerance.max_relative:.3g}"
        )
    if measured.quantile_relative > tolerance.quantile_relative:
        yield (
            f"{ERROR_QUANTILE:.0%} quantile of the error relative to the output's magnitude is"
            f" {measured.quantile_relative:.3g}, allowed {tolerance.quantile_relative:.3g}"
        )
    if measured.min_cosine < tolerance.min_cosine:
        yield f"smallest cosine of a sample is {measured.min_cosine:.9f}, allowed {tolerance.min_cosine}"


def is_constant(comparisons: list[OutputComparison]) -> bool:
    """Whether an output never varied between the samples of any case: then nothing was checked."""
    several = [c for c in comparisons if len(c.shape) > 0 and c.shape[0] > 1]
    return bool(several) and all(c.variance <= (_ZERO_DEVIATION * c.magnitude) ** 2 for c in several)


class Padding:
    """Which positions of an output hold padding, by the model's own mask.

    Args:
        inputs: the graph's inputs.
        mask_input: the one that is 0 where the input is padding; None: nothing is padding.
    """

    def __init__(self, inputs: Sequence[Tensor], mask_input: str | None) -> None:
        self._mask = next((t for t in inputs if t.name == mask_input), None)

    def valid(self, output: Tensor, feed: Mapping[str, NDArray[np.generic]]) -> NDArray[np.bool_] | None:
        """The positions that count, where the output begins with the mask's axes; None: all do."""
        if self._mask is None or output.dims[: len(self._mask.dims)] != self._mask.dims:
            return None
        return feed[self._mask.name].astype(bool)


def _samples(
    reference: NDArray[np.generic], candidate: NDArray[np.generic], valid: NDArray[np.bool_] | None
) -> list[tuple[NDArray[np.generic], NDArray[np.generic]]]:
    if reference.ndim == 0:
        return [(reference, candidate)]
    if valid is None:
        return list(zip(reference, candidate, strict=True))
    return [(r[v], c[v]) for r, c, v in zip(reference, candidate, valid, strict=True)]


def _variance_over_samples(candidate: NDArray[np.generic], valid: NDArray[np.bool_] | None) -> float:
    """Mean over positions of the variance between samples; positions that are padding anywhere are left out."""
    if candidate.ndim == 0 or candidate.shape[0] < 2:
        return 0.0
    common = candidate if valid is None else candidate[:, valid.all(axis=0)]
    if common.size == 0:
        return 0.0
    return float(np.var(common.astype(np.float64), axis=0).mean())


def _cosine(rr: float, cc: float, rc: float) -> float:
    """Of two vectors, from their squared lengths and their product; two zero vectors agree."""
    if rr == 0.0 or cc == 0.0:
        return 1.0 if rr == cc else 0.0
    return rc / math.sqrt(rr * cc)


def _incomparable(case: str, output: str, shape: tuple[int, ...], why: str) -> OutputComparison:
    infinite = float(np.finfo(np.float64).max)
    return OutputComparison(
        case=case,
        output=output,
        shape=shape,
        elements=0,
        magnitude=0.0,
        max_absolute=infinite,
        max_relative=infinite,
        quantile_absolute=infinite,
        quantile_relative=infinite,
        min_cosine=-1.0,
        variance=0.0,
        failures=(why,),
    )


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
