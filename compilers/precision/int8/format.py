"""The formats of eight bits that Q/DQ pairs store tensors in, and how QuantizeLinear rounds to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from plansmith.records.model import Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Format:
    """A format of eight bits. A value is stored as its nearest code times a scale; what is beyond saturates.

    Attributes:
        precision: what a recipe calls it.
        element: ONNX's number for it.
        least: the smallest code; 0 for codes without a sign, which have a zero point.
        largest: the largest code.
        opset: the first whose QuantizeLinear and DequantizeLinear have it.
        fraction_bits: of a floating-point code's significand, the hidden bit not counted; 0 for integers.
        smallest_exponent: of its normal codes; 0 for integers.
    """

    precision: Precision
    element: int
    least: float
    largest: float
    opset: int
    fraction_bits: int = 0
    smallest_exponent: int = 0

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """NumPy's type, ml_dtypes' for FP8."""
        import onnx

        return onnx.helper.tensor_dtype_to_np_dtype(self.element)

    @property
    def words(self) -> str:
        """What its codes are."""
        return "FLOAT8E4M3FN" if self.fraction_bits else f"{'' if self.least else 'un'}signed 8 bits"

    def scale(self, low: float, high: float) -> tuple[float, int]:
        """Scale and zero point for values from `low` (0 or below) to `high` (0 or above); 0 stays exactly 0."""
        if self.least < 0:
            return (max(-low, high) or 1.0) / self.largest, 0
        scale = (high - low or 1.0) / self.largest
        return scale, round(-low / scale)

    def narrowed(self, bits: int) -> Format:
        """Integers of fewer bits in the same bytes."""
        return replace(self, largest=2 ** (bits - 1) - 1)

    def step(self, magnitudes: Floats) -> Floats:
        """The distance of the codes around these magnitudes, which are given in scales: 1 for integers."""
        if not self.fraction_bits:
            return np.ones_like(magnitudes)
        exponents = np.frexp(np.maximum(magnitudes, 2.0**self.smallest_exponent))[1] - 1
        steps: Floats = np.ldexp(1.0, exponents - self.fraction_bits)
        return steps

    def codes(self, levels: Floats) -> NDArray[np.generic]:
        """The nearest codes to values that are given in scales; ties to even, as QuantizeLinear does."""
        inside = levels.clip(self.least, self.largest)
        return (inside if self.fraction_bits else np.rint(inside)).astype(self.dtype)

    def rounded(self, values: NDArray[np.float32], scale: float, zero: int = 0) -> NDArray[np.float32]:
        """What comes back from a Q/DQ pair."""
        inside = (values / scale).clip(self.least - zero, self.largest - zero)
        levels = inside.astype(self.dtype) if self.fraction_bits else np.rint(inside)
        back: NDArray[np.float32] = (levels.astype(np.float32) * scale).astype(np.float32)
        return back


INT8 = Format(Precision.INT8, element=3, least=-128, largest=127, opset=13)
UINT8 = Format(Precision.INT8, element=2, least=0, largest=255, opset=13)
FP8 = Format(Precision.FP8, element=17, least=-448, largest=448, opset=19, fraction_bits=3, smallest_exponent=-6)
"""FLOAT8E4M3FN: four bits of exponent, three of fraction, no infinity (arXiv:2209.05433)."""
