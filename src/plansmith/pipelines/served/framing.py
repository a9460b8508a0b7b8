"""Image framing to a model's input size: resizing by several rules, and center cropping.

Each is a mapping with `do` and what it needs. A rule and its rounding are those of a library, so that sizes are equal
to the pixel:

- `exact`: to `height` and `width`, whatever the shape was.
- `shortest`: the shorter side becomes `side`, the longer one is cut down to whole pixels.
- `ratio`: both sides by one ratio, rounded: the shorter one reaches its part of `height` and `width` (`longest` 0), or
  the longer one does (`longest` 1).
- `fit`: the shorter side becomes `side`, unless the longer one would become more than `longest`, which then it becomes;
  both are cut down to whole pixels, and to a multiple of `multiple`.
- `crop`: `height` x `width` at the centre. `rounding` is of the half pixel where an odd number of them is left over:
  `down`, or to the `even` one. What is smaller gets a border of `fill`, with the `less` or the `more` of an odd number
  of pixels `before` it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image


class Unfit(Exception):
    """Unfit image: why it cannot be brought to size."""


def framed(image: Image, steps: list[Mapping[str, Any]], most_pixels: int) -> Image:
    """Return an image after all steps.

    Raises:
        Unfit: a side would vanish, or there would be more pixels than may be.
    """
    for step in steps:
        image = _cropped(image, step) if step["do"] == "crop" else _resized(image, step, most_pixels)
    return image


def _resized(image: Image, step: Mapping[str, Any], most_pixels: int) -> Image:
    from PIL.Image import Resampling

    width, height = _size(image.size, step)
    if min(width, height) < 1 or width * height > most_pixels:
        raise Unfit(
            f"its shape of {image.width} x {image.height} pixels would become {width} x {height}, of which at least 1"
            f" and at most {most_pixels} are taken"
        )
    return image if (width, height) == image.size else image.resize((width, height), Resampling[step["filter"].upper()])


def _size(size: tuple[int, int], step: Mapping[str, Any]) -> tuple[int, int]:
    """Return width and height after a resize."""
    width, height = size
    if step["do"] == "exact":
        return step["width"], step["height"]
    if step["do"] == "shortest":
        longer = int(step["side"] * max(size) / min(size))
        return (step["side"], longer) if width <= height else (longer, step["side"])
    if step["do"] == "fit":
        return _fitted(width, height, step)
    across, down = width / step["width"], height / step["height"]
    ratio = max(across, down) * step["longest"] + min(across, down) * (1.0 - step["longest"])
    return round(width / ratio), round(height / ratio)


def _fitted(width: int, height: int, step: Mapping[str, Any]) -> tuple[int, int]:
    """Fit a size as DETR does and, with a multiple, as YOLOS does (image processors of transformers)."""
    shorter, longer, side, multiple = min(width, height), max(width, height), step["side"], step["multiple"]
    target: float = side
    if longer / shorter * side > step["longest"]:
        target = step["longest"] * shorter / longer
        side = round(target)
    if side != shorter or (multiple > 1 and width < height):
        longer = int(target * longer / shorter)
        shorter = side
    across, down = (shorter, longer) if width < height else (longer, shorter)
    return across - across % multiple, down - down % multiple


def _cropped(image: Image, step: Mapping[str, Any]) -> Image:
    import PIL.Image

    left, top = _start(image.width, step["width"], step), _start(image.height, step["height"], step)
    if image.width >= step["width"] and image.height >= step["height"]:
        return image.crop((left, top, left + step["width"], top + step["height"]))
    fill = tuple(step["fill"])
    canvas = PIL.Image.new(image.mode, (step["width"], step["height"]), fill if len(fill) > 1 else fill[0])
    canvas.paste(image, (-left, -top))
    return canvas


def _start(side: int, length: int, step: Mapping[str, Any]) -> int:
    """Return the start of a crop along one side; negative if the image gets a border there."""
    left_over = side - length
    if left_over < 0:
        return -(-left_over // 2) if step["before"] == "less" else -((1 - left_over) // 2)
    return left_over // 2 if step["rounding"] == "down" else round(left_over / 2)
