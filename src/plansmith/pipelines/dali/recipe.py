"""What a source does with an image before the model sees it, as far as DALI can do the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from plansmith.errors import EngineError
from plansmith.records.model import BATCH, Dim, Record, Tensor

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


class Exact(Record):
    """To a size, whatever the shape was."""

    do: Literal["exact"]
    height: _Pixels
    width: _Pixels
    filter: str


class Shortest(Record):
    """The shorter side becomes `side`, the longer one is cut down to whole pixels."""

    do: Literal["shortest"]
    side: _Pixels
    filter: str


class Ratio(Record):
    """Both sides by one ratio: the shorter one reaches its part of the size, or, with `longest` 1, the longer one."""

    do: Literal["ratio"]
    height: _Pixels
    width: _Pixels
    longest: float
    filter: str


class Crop(Record):
    """A size at the centre, with a border of `fill` where the image is smaller (see `pipeline.served.framing`)."""

    do: Literal["crop"]
    height: _Pixels
    width: _Pixels
    rounding: Literal["down", "even"]
    fill: tuple[float, ...]
    before: Literal["less", "more"]


Step = Annotated[Exact | Shortest | Ratio | Crop, Field(discriminator="do")]


class Recipe(Record):
    """The settings of the part that does the same with Pillow (see `pipeline.served.images`), checked for DALI."""

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
        """How much one level of 0 to 255 makes in the tensor, in the channel where it makes most."""
        return max(self.scale / one for one in self.std)

    @property
    def tensor(self) -> Tensor:
        """The model's input that the pipeline makes."""
        dims: tuple[Dim, ...] = (BATCH, len(self.order), self.height, self.width)
        return Tensor(name=self.output, dtype=self.dtype, dims=dims)


def recipe_from_settings(settings: Mapping[str, Any]) -> Recipe:
    """What the settings of the part in Python ask for.

    Raises:
        EngineError: DALI cannot do the same; names all that it cannot do.
    """
    unable = {name: what for name, what in _UNABLE.items() if settings[name]}
    if unable:
        raise EngineError(f"preprocessing: dali: DALI's part does not {'; nor '.join(unable.values())}", remedy=REMEDY)
    known = {name: value for name, value in settings.items() if name not in {*_UNABLE, "mask_dtype"}}
    recipe = TypeAdapter(Recipe).validate_python(known)
    filters = {step.filter for step in recipe.steps if not isinstance(step, Crop)}
    found = [f"resize with {name} (it knows {', '.join(FILTERS)})" for name in sorted(filters - {*FILTERS})]
    if any(isinstance(step, Ratio) and step.longest not in {0, 1} for step in recipe.steps):
        found.append("scale by a ratio between those of the two sides")
    if recipe.mode != "RGB":
        found.append(f"read images as {recipe.mode}: other weights make its greys of colours than Pillow's")
    elif recipe.order not in _ORDERS:
        found.append(f"put channels into the order {list(recipe.order)}")
    if recipe.dtype not in _FLOATS:
        found.append(f"make tensors of {recipe.dtype}")
    if not any(isinstance(step, Exact | Crop) for step in recipe.steps):
        found.append("make a batch of images that keep sizes of their own")
    if found:
        raise EngineError(f"preprocessing: dali: DALI cannot {'; nor '.join(found)}", remedy=REMEDY)
    return recipe
