"""The two formats of sixteen bits: how far they reach and how finely they tell numbers apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.records.model import Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOAT = 1
"""ONNX's number for FP32."""

_HEADROOM = 4
"""How far a value may grow beyond the largest that calibration saw before it leaves the format.

Calibration sees a sample of what the model will be asked. The largest of many values grows slowly with their number,
but a square doubles its distance in bits, so two bits are left: inputs may be twice as large even where they are
squared. A larger margin would keep nodes in FP32 that gain nothing from it and cost two casts each.
"""


@dataclass(frozen=True)
class Format:
    """A floating-point format of sixteen bits.

    Attributes:
        precision: what a recipe calls it.
        element: ONNX's number for it.
        largest: the largest finite number.
        smallest_normal: below it numbers lose their digits one by one.
        digits: bits of the significand, the hidden one included: whole numbers are exact up to two to their power.
        opset: the first that has the usual operators in it; a graph of an older one is converted where that helps.
    """

    precision: Precision
    element: int
    largest: float
    smallest_normal: float
    digits: int
    opset: int

    @property
    def words(self) -> str:
        """Its name, for reasons and messages."""
        return self.precision.upper()

    @property
    def limit(self) -> float:
        """The largest magnitude that calibration may have seen in a tensor of this format."""
        return self.largest / _HEADROOM

    @property
    def exact(self) -> int:
        """Whole numbers up to here are exact, and so is a sum of that many equal terms."""
        return 1 << self.digits

    @property
    def schema_type(self) -> str:
        """What operator schemas call a tensor of it."""
        return "tensor(float16)" if self.precision is Precision.FP16 else "tensor(bfloat16)"

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values in this format, rounded to the nearest; what is too large becomes infinite."""
        import numpy as np
        import onnx

        with np.errstate(over="ignore"):
            return np.asarray(values).astype(onnx.helper.tensor_dtype_to_np_dtype(self.element))

    def relative_error(self, values: NDArray[Any]) -> float:
        """Root mean square of what rounding changes, in parts of that of the values; 0 for none but zeros."""
        import numpy as np

        exact = np.asarray(values, np.float64)
        power = float(np.square(exact).sum())
        with np.errstate(invalid="ignore"):
            lost = float(np.square(self.rounded(values).astype(np.float64) - exact).sum())
        return (lost / power) ** 0.5 if power else 0.0


FP16 = Format(Precision.FP16, element=10, largest=65504.0, smallest_normal=2.0**-14, digits=11, opset=1)
BF16 = Format(
    Precision.BF16, element=16, largest=(2 - 2.0**-7) * 2.0**127, smallest_normal=2.0**-126, digits=8, opset=22
)
FORMATS = {form.precision: form for form in (FP16, BF16)}


def number(value: float) -> str:
    """A magnitude in words: whole with spaces where people read it so, else with two digits and an exponent."""
    size = abs(value)
    return f"{value:,.0f}".replace(",", " ") if 100 <= size < 1e7 else f"{value:.2g}"
