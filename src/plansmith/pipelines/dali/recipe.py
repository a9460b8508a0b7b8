"""Image preprocessing recipe of a source model, as far as DALI can reproduce it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from plansmith.errors import EngineError
from plansmith.records.model import BATCH, Dim, Record, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_Pixels = Annotated[int, Field(ge=1)]

REMEDY = "write preprocessing: python into the spec, whose part does as the source does"

FILTERS = ("bilinear", "bicubic", "lanczos")
"""Pillow's ways to resize that DALI has, too: it has no box and no hamming, and of near pixels it takes others."""

_FLOATS = ("float32", "float16")
_ORDERS = ((0, 1, 2), (2, 1, 0))

_UNABLE = {
    "padded": "fill images up to a size",
    "mask": "make a mask of the pixels that an image has",
    "sizes": "say how large images were sent, which boxes and maps need",
}

MEAN_LEVELS = 0.5
"""How far an image's levels may be from the source's in the mean.

Measured: at most 0.21, over the 28 photographs, drawings and texts of scikit-image and scikit-learn (PNG and JPEG, in
colour, grey and with transparency), against Pillow with bilinear, bicubic and Lanczos filters, DALI 2.4.0 on a CPU.
Decoding is equal to the bit; what differs is that Pillow rounds to whole levels between the two directions of a resize.
"""

QUANTILE_LEVELS = 4.0
"""How far 99 of 100 values of an image may be from the source's.

Measured as `MEAN_LEVELS` was: at most 2 with bicubic and bilinear filters, 3 with Lanczos, at the edges of drawings.
"""


class Exact(Record):
    """Exact resize to a size, regardless of the aspect ratio."""

    do: Literal["exact"]
    height: _Pixels
    width: _Pixels
    filter: str


class Shortest(Record):
    """Shortest-side resize: the shorter side becomes `side`; the longer one is truncated to whole pixels."""

    do: Literal["shortest"]
    side: _Pixels
    filter: str


class Ratio(Record):
    """Ratio resize: scales both sides until the shorter one, or with `longest` 1 the longer one, has its size."""

    do: Literal["ratio"]
    height: _Pixels
    width: _Pixels
    longest: float
    filter: str


class Crop(Record):
    """Center crop to a size, padded with `fill` where the image is smaller (see `pipeline.served.framing`)."""

    do: Literal["crop"]
    height: _Pixels
    width: _Pixels
    rounding: Literal["down", "even"]
    fill: tuple[float, ...]
    before: Literal["less", "more"]


Step = Annotated[Exact | Shortest | Ratio | Crop, Field(discriminator="do")]


class Recipe(Record):
    """DALI preprocessing recipe.

    Settings of the equivalent Pillow part (see `pipeline.served.images`), checked for DALI.
    """

    input: str
    output: str
    dtype: str
    mode: str
    upright: bool
    whitened: bool
    steps: tuple[Step, ...]
    height: _Pixels
    width: _Pixels
    scale: float = Field(gt=0)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    order: tuple[int, ...]
    formats: tuple[str, ...]
    most_pixels: _Pixels

    @property
    def largest_level(self) -> float:
        """The largest change of the tensor, over the channels, per level of 0 to 255."""
        return max(self.scale / deviation for deviation in self.std)

    @property
    def tensor(self) -> Tensor:
        """The model's input tensor that the pipeline produces."""
        dims: tuple[Dim, ...] = (BATCH, len(self.order), self.height, self.width)
        return Tensor(name=self.output, dtype=self.dtype, dims=dims)


def recipe_from_settings(settings: Mapping[str, Any]) -> Recipe:
    """Build a recipe from the settings of the Python part.

    Raises:
        EngineError: DALI cannot do the same; names all that it cannot do.
    """
    unable = {name: description for name, description in _UNABLE.items() if settings[name]}
    if unable:
        raise EngineError(f"preprocessing: dali: DALI's part does not {'; nor '.join(unable.values())}", remedy=REMEDY)
    fields = {name: value for name, value in settings.items() if name not in {*_UNABLE, "mask_dtype"}}
    recipe = TypeAdapter(Recipe).validate_python(fields)
    filters = {step.filter for step in recipe.steps if not isinstance(step, Crop)}
    problems = [f"resize with {name} (it knows {', '.join(FILTERS)})" for name in sorted(filters - {*FILTERS})]
    if any(isinstance(step, Ratio) and step.longest not in {0, 1} for step in recipe.steps):
        problems.append("scale by a ratio between those of the two sides")
    if recipe.mode != "RGB":
        problems.append(f"read images as {recipe.mode}: other weights make its greys of colours than Pillow's")
    elif recipe.order not in _ORDERS:
        problems.append(f"put channels into the order {list(recipe.order)}")
    if recipe.dtype not in _FLOATS:
        problems.append(f"make tensors of {recipe.dtype}")
    if not any(isinstance(step, Exact | Crop) for step in recipe.steps):
        problems.append("make a batch of images that keep sizes of their own")
    if problems:
        raise EngineError(f"preprocessing: dali: DALI cannot {'; nor '.join(problems)}", remedy=REMEDY)
    return recipe


@dataclass(frozen=True)
class Difference:
    """Difference between two batches: that of the image where it is largest.

    Args:
        mean_levels: the mean of all values' differences.
        quantile_levels: what 99 of 100 values are within.
    """

    mean_levels: float
    quantile_levels: float

    @property
    def is_within_bound(self) -> bool:
        """Whether DALI's different rounding explains the difference."""
        return self.mean_levels <= MEAN_LEVELS and self.quantile_levels <= QUANTILE_LEVELS


def difference(ours: NDArray[np.generic], theirs: NDArray[np.generic], recipe: Recipe) -> Difference:
    """Compare two batches of a recipe's tensor, [batch, channels, height, width].

    Raises:
        ValueError: their shapes differ.
    """
    import numpy as np

    if ours.shape != theirs.shape:
        raise ValueError(f"a batch of shape {list(ours.shape)} is compared with one of {list(theirs.shape)}")
    level = np.array([recipe.scale / recipe.std[channel] for channel in recipe.order])
    levels = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) / level[:, None, None]
    rows = levels.reshape(len(levels), math.prod(levels.shape[1:]))
    return Difference(
        mean_levels=float(rows.mean(axis=1).max(initial=0)),
        quantile_levels=max((float(np.quantile(row, 0.99)) for row in rows), default=0.0),
    )
