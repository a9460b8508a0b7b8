"""Array types for annotations only: importing this module imports NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by the name of the tensor that each is of."""
