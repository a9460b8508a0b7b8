"""Tensor comparison: how far a candidate's tensor is from the reference's, and whether it exceeds the limits.

Errors are judged relative to the output's own magnitude, its root mean square over the elements that
count, so that one tolerance serves logits of 20 and embeddings of 0.05 alike. Everything is computed in
float64, one sample at a time; what is kept beside it is one float32 error an element. Whole numbers and flags are
right or wrong: the share of equal ones stands for their cosine, and for FP32 all have to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plansmith.records.model import Precision, Rounding, Tensor
from plansmith.records.validation import OutputComparison, Tolerance

if TYPE_CHECKING:
    from numpy.typing import NDArray

ERROR_QUANTILE = 0.99
"""Of the errors; of fewer than a hundred, all but the largest, which has a limit of its own."""

FEWEST_ELEMENTS = 8
"""A sample's answer of fewer numbers has no direction to speak of: two scores of 0.05 and -0.05 point the other way
round after an error of 0.1. Such answers of all samples are taken together as one vector."""

# Beside a model that amplifies roundings, so many times what it does to them itself; what is wrong in a graph begins
# where the second tolerance ends.
_ROUNDINGS = 4
_WIDEST = Tolerance(max_relative=1e-3, quantile_relative=1e-3, min_cosine=0.9999, min_mean_cosine=0.9999)
Moments = tuple[float, float, float]
"""Squared length of the reference, of the candidate, and their product."""

_ZERO_DEVIATION = 1e-6
_LARGEST = float(np.finfo(np.float32).max)


class Limits(NamedTuple):
    """Limits of the accuracy gate for a precision.

    `tolerance` is for every output: the first three numbers at every shape, the two cosines for every held-out sample
    and their mean. `scores`: how much lower accuracy, F1, exact match and Spearman's correlation may be than those of
    FP32. `classes`, `neighbours`: how many samples may have another first class, or another nearest neighbour, than
    FP32 gives them, where there are no labels to tell which of the two is right.
    """

    tolerance: Tolerance
    scores: float
    classes: float
    neighbours: float


# The table. Each limit lies between what correct and what broken candidates gave; measured on all-MiniLM-L6-v2 with
# 256 held-out English sentences and at six shapes up to 256 tokens (M), and on a small CNN and ViT trained on digits,
# 899 held out (D).
#
# FP32: only the order of sums differs: at worst 2e-5, 4e-6 and 1e-12 (one minus the cosine) over eleven models of ten
#   families. A wrong epsilon, a flipped bit, a dropped bias or an ignored mask is at 1e-3 and above (tests/validation).
# FP16 (11 bits, u = 4.9e-4): largest error 0.031, 99 % below 0.005, cosine 0.999999 (M); 0.005, 0.002 and 0.99999 (D).
#   No class changed, and 0 to 0.8 % of the neighbours. An overflow is Inf or NaN, or leaves the cosine far below.
# BF16 (8 bits, u = 3.9e-3, eight times coarser): 0.30, 0.055 and 0.99985; 2 % of the neighbours changed (M).
# FP8 (E4M3, 4 bits, u = 6.3e-2; weights and the data of products and convolutions): 1.4, 0.27 and a worst cosine of
#   0.9955 a token, 0.9977 and 0.9957 a sentence, 5 % of the neighbours changed (M); 0.58, 0.54, 0.9948 and 0.957, 1.1 %
#   of the classes changed (D, CNN). Scales of half the range and less lose it: 0.49 and -0.2 (D, CNN), 0.92 and 0.59
#   (D, ViT, a quarter).
# INT8: an activation's largest element sets the scale, so a single element may be off by more than the output's
#   magnitude (2.5 to 3.9 in M) while the answer is fine; the cosine and the task decide, and the two element limits
#   only refuse what is lost altogether. Recipes that keep the task, mean and worst cosine: 0.993 and 0.980 (dynamic,
#   per channel), 0.986 and 0.961 (static, without attention and the second half of the FFN) (M), 0.9995 and 0.951 (D);
#   at most 16 % of the neighbours (M) and 1.5 % of the classes (D) changed. Those that lose it: 0.963 and 0.886 (ONNX
#   Runtime's dynamic default), 0.83 and 0.62 (static), 0.35 and 0.02 (static, all operators) (M), 0.81 and 0.48
#   (calibration clipped) (D), with 27 to 87 % of the neighbours and 53 to 66 % of the classes changed.
#
# A point of the task's own measure is what MLPerf Inference's closed division grants INT8 too (99 % of FP32).
LIMITS = {
    Precision.FP32: Limits(
        Tolerance(max_relative=1e-4, quantile_relative=2e-5, min_cosine=0.99999999, min_mean_cosine=0.99999999),
        scores=0.005,
        classes=0.005,
        neighbours=0.005,
    ),
    Precision.FP16: Limits(
        Tolerance(max_relative=0.1, quantile_relative=0.02, min_cosine=0.9999, min_mean_cosine=0.99999),
        scores=0.005,
        classes=0.01,
        neighbours=0.02,
    ),
    Precision.BF16: Limits(
        Tolerance(max_relative=1, quantile_relative=0.2, min_cosine=0.998, min_mean_cosine=0.999),
        scores=0.01,
        classes=0.02,
        neighbours=0.06,
    ),
    Precision.FP8: Limits(
        Tolerance(max_relative=5, quantile_relative=0.8, min_cosine=0.945, min_mean_cosine=0.985),
        scores=0.01,
        classes=0.04,
        neighbours=0.15,
    ),
    Precision.INT8: Limits(
        Tolerance(max_relative=10, quantile_relative=1, min_cosine=0.94, min_mean_cosine=0.98),
        scores=0.01,
        classes=0.06,
        neighbours=0.2,
    ),
}

TOLERANCES = {precision: limits.tolerance for precision, limits in LIMITS.items()}


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
        return _incomparable(case, output, shape, other_shape(reference, candidate))
    if reference.dtype != candidate.dtype:
        return _incomparable(case, output, shape, f"dtype is {candidate.dtype}, expected {reference.dtype}")
    moments, errors = [], []
    for r, c in samples_of(reference, candidate, valid):
        if not np.isfinite(c).all():
            return _incomparable(case, output, shape, "NaN or Inf in the candidate's answer")
        if not np.isfinite(r).all():
            return _incomparable(case, output, shape, "NaN or Inf in the reference's answer")
        expected, actual = r.astype(np.float64).ravel(), c.astype(np.float64).ravel()
        moments.append((float(expected @ expected), float(actual @ actual), float(expected @ actual)))
        errors.append(np.abs(actual - expected).clip(max=_LARGEST).astype(np.float32))
    elements = sum(e.size for e in errors)
    if elements == 0:
        return _incomparable(case, output, shape, "no element counts: everything is padding")
    every = np.concatenate(errors)
    magnitude = math.sqrt(sum(rr for rr, _, _ in moments) / elements) or float(np.finfo(np.float32).tiny)
    maximum, quantile = float(every.max()), float(np.quantile(every, ERROR_QUANTILE, method="lower"))
    exact = reference.dtype.kind in "iub"  # indices, counts and flags are right or wrong
    if exact:
        cosine = float(np.mean(every == 0))
    else:
        counted = [m for m, e in zip(moments, errors, strict=True) if e.size]
        cosine = min(cosine_of(*m) for m in _directions(counted, elements))
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
    return measured.model_copy(update={"failures": tuple(_breaches(measured, tolerance, exact=exact))})


def widened(tolerance: Tolerance, rounding: Rounding | None) -> Tolerance:
    """Return FP32's tolerance for an output of a model that amplifies rounding errors (see `compilers.rounding`)."""
    if rounding is None:
        return tolerance
    cosine = max(_WIDEST.min_cosine, 1 - _ROUNDINGS * (1 - rounding.cosine))

    def allowed(usual: float, moved: float, widest: float) -> float:
        return max(usual, min(_ROUNDINGS * moved, widest))

    return Tolerance(
        max_relative=allowed(tolerance.max_relative, rounding.max_relative, _WIDEST.max_relative),
        quantile_relative=allowed(tolerance.quantile_relative, rounding.quantile_relative, _WIDEST.quantile_relative),
        min_cosine=min(tolerance.min_cosine, cosine),
        min_mean_cosine=min(tolerance.min_mean_cosine, cosine),
    )


def _breaches(measured: OutputComparison, tolerance: Tolerance, *, exact: bool) -> Iterator[str]:
    """Yield a message for each breach of the tolerance."""
    if exact:
        if measured.min_cosine < tolerance.min_cosine:
            yield f"share of equal elements is {format_shortfall(measured.min_cosine, tolerance.min_cosine)}"
        return
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
        yield f"smallest cosine of a sample is {format_shortfall(measured.min_cosine, tolerance.min_cosine)}"


def format_shortfall(value: float, least: float) -> str:
    """Format a value below its limit, with as many digits as tell the two apart and at least six."""
    digits = next((digits for digits in range(6, 17) if round(value, digits) < least), 17)
    return f"{value:.{digits}f}, allowed {least}"


def is_constant(comparisons: list[OutputComparison]) -> bool:
    """Whether an output was constant over the samples of all cases, so that nothing was checked."""
    several = [c for c in comparisons if len(c.shape) > 0 and c.shape[0] > 1]
    return bool(several) and all(c.variance <= (_ZERO_DEVIATION * c.magnitude) ** 2 for c in several)


class Padding:
    """Padding mask: which positions of an output are padding, by the model's own mask.

    Args:
        inputs: the graph's inputs.
        mask_input: the one that is 0 where the input is padding; None: nothing is padding.
    """

    def __init__(self, inputs: Sequence[Tensor], mask_input: str | None) -> None:
        self._mask = next((t for t in inputs if t.name == mask_input), None)

    def valid(self, output: Tensor, feed: Mapping[str, NDArray[np.generic]]) -> NDArray[np.bool_] | None:
        """Return the mask of valid positions, if the output starts with the mask's axes; None: all are valid."""
        if self._mask is None or output.dims[: len(self._mask.dims)] != self._mask.dims:
            return None
        return feed[self._mask.name].astype(bool)


def samples_of(
    reference: NDArray[np.generic], candidate: NDArray[np.generic], valid: NDArray[np.bool_] | None
) -> list[tuple[NDArray[np.generic], NDArray[np.generic]]]:
    """Return both outputs sample by sample, without padding."""
    if reference.ndim == 0:
        return [(reference, candidate)]
    if valid is None:
        return list(zip(reference, candidate, strict=True))
    return [(r[v], c[v]) for r, c, v in zip(reference, candidate, valid, strict=True)]


def _variance_over_samples(candidate: NDArray[np.generic], valid: NDArray[np.bool_] | None) -> float:
    """Mean over positions of the variance between samples; positions that are padding in any sample are left out."""
    if candidate.ndim == 0 or candidate.shape[0] < 2:
        return 0.0
    common = candidate if valid is None else candidate[:, valid.all(axis=0)]
    if common.size == 0:
        return 0.0
    return float(np.var(common.astype(np.float64), axis=0).mean())


def _directions(moments: list[Moments], elements: int) -> list[Moments]:
    """The moments for the cosines: one vector per sample, or all samples pooled where vectors are too short."""
    if elements >= FEWEST_ELEMENTS * len(moments):
        return moments
    rr, cc, rc = (sum(column) for column in zip(*moments, strict=True))
    return [(rr, cc, rc)]


def cosine_of(rr: float, cc: float, rc: float) -> float:
    """Return the cosine of two vectors from their squared norms and dot product; two zero vectors agree."""
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


def other_shape(reference: NDArray[np.generic], candidate: NDArray[np.generic]) -> str:
    """Return the message that a candidate's output differs in shape from the reference's."""
    shapes = ("x".join(map(str, array.shape)) or "scalar" for array in (candidate, reference))
    return "shape is {}, expected {}".format(*shapes)
