"""Recipes of timm's evaluation transforms, read from the transform itself. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from plansmith.pipelines.image.preprocessing import ImageRecipe, Step, crop, exact, inexpressible, ratio, shortest

_WHO = "timm's transform"
_TO_TENSOR = {"MaybeToTensor", "ToTensor"}


def recipe_from_transform(transform: Any, channels: int, *, upright: bool) -> ImageRecipe:
    """What `timm.data.create_transform` made for evaluation.

    Args:
        transform: a composition.
        channels: of the model's images.
        upright: whether whoever calls it turns images as their EXIF orientation says.

    Raises:
        SourceError: it has a step that the part for images has not.
    """
    every: list[Any] = list(transform.transforms)
    if len(every) < 2:
        raise inexpressible(_WHO, f"is {_named(transform)}")
    *framing, to_tensor, normalize = every
    if type(to_tensor).__name__ not in _TO_TENSOR or type(normalize).__name__ != "Normalize":
        raise inexpressible(_WHO, f"ends with {_named(to_tensor)}, {_named(normalize)}")
    if channels not in {1, 3}:
        raise inexpressible(_WHO, f"makes {channels} channels")
    mean, std = (tuple(_numbers(values)) for values in (normalize.mean, normalize.std))
    if {len(mean), len(std)} != {channels}:
        raise inexpressible(_WHO, f"normalises {len(mean)} channels of images that have {channels}")
    mode: Literal["RGB", "L"] = "L" if channels == 1 else "RGB"
    return ImageRecipe(
        steps=tuple(_step(one, channels) for one in framing),
        scale=1 / 255,
        mean=mean,
        std=std,
        upright=upright,
        mode=mode,
        order=tuple(range(channels)),
    )


def _step(one: Any, channels: int) -> Step:
    kind = type(one).__name__
    if kind == "Resize" and getattr(one, "max_size", None) is None:
        filter_name = str(one.interpolation.value)
        sides = [one.size] if isinstance(one.size, int) else list(one.size)
        return shortest(sides[0], filter_name) if len(sides) == 1 else exact(sides[0], sides[1], filter_name)
    if kind == "ResizeKeepRatio" and not one.random_scale_prob and not one.random_aspect_prob:
        height, width = one.size
        return ratio(height, width, str(one.interpolation.value), longest=one.longest)
    if kind == "CenterCrop":
        height, width = one.size
        return crop(height, width, rounding="even", fill=[0] * channels)
    if kind == "CenterCropOrPad" and one.padding_mode == "constant":
        height, width = one.size
        fill = [one.fill] * channels if isinstance(one.fill, int) else list(one.fill)
        return crop(height, width, rounding="even", fill=fill)
    raise inexpressible(_WHO, f"has the step {_named(one)}")


def _numbers(values: Any) -> Sequence[float]:
    """Of a tensor or a sequence, as they were given: a float of 32 bits is not made longer than it is."""
    found: list[float] = [float(value) for value in values]
    return found


def _named(step: Any) -> str:
    return " ".join(repr(step).split())
