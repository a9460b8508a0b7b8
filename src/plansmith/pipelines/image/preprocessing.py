"""What a source does with an image before its model sees it, as far as the part that serves it can do the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plansmith.errors import SourceError
from plansmith.records.model import Tensor

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Files that are read, by Pillow's names: those that people have, of decoders that are looked after."""

MOST_PIXELS = 89_478_485
"""Of an image: where Pillow begins to speak of a decompression bomb; a quarter of a GiB in three channels."""

Step = Mapping[str, Any]
"""One step of `pipeline.served.framing`."""


@dataclass(frozen=True)
class Agreement:
    """How far Pillow is from the source's own preprocessing, in levels of 0 to 255 before they are normalised.

    Args:
        mean: of the absolute differences of an image's values, at most.
        largest: at most, of any value.
    """

    mean: float
    largest: float


EQUAL = Agreement(mean=1e-4, largest=1e-3)
"""The same but for the rounding of floats: the source resizes with Pillow, too."""

TENSORS = Agreement(mean=0.2, largest=24.0)
"""The source resizes with torchvision, as whole numbers.

Measured on the photographs of scikit-image and scikit-learn, enlarged and reduced by all filters: mean below 0.13.
Bilinear: never more than 2 levels apart. Bicubic and Lanczos: 2 levels where PyTorch computes in whole numbers (x86
with AVX2); elsewhere, and in drawings, the overshoot at sharp edges, which Pillow clips between its two passes, makes
up to 19 in single values.
"""

FLOATS = Agreement(mean=0.45, largest=25.0)
"""The source resizes with torchvision, as floats that it does not round to whole levels: half a level more."""


@dataclass(frozen=True)
class ImageRecipe:
    """Steps and numbers, from decoded pixels to the model's input.

    Args:
        steps: that bring an image to size.
        scale: what a level of 0 to 255 is multiplied by; then `mean` is taken off, and it is divided by `std`.
        mean: for each channel.
        std: for each channel.
        upright: whether the image is turned as its EXIF orientation says.
        mode: "RGB", or "L" for one channel.
        order: which channel of the mode goes to each channel of the model's input.
        whitened: whether a file's one transparent colour becomes white.
        agreement: how far what Pillow makes may be from what the source makes.
        padded: height and width that zeros fill every image up to; None: nothing does.
    """

    steps: tuple[Step, ...]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    upright: bool
    mode: Literal["RGB", "L"] = "RGB"
    order: tuple[int, ...] = (0, 1, 2)
    whitened: bool = False
    agreement: Agreement = EQUAL
    padded: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every image after the steps; None where they depend on the image."""
        if self.padded is not None:
            return self.padded
        if not self.steps or self.steps[-1]["do"] not in {"exact", "crop"}:
            return None
        return int(self.steps[-1]["height"]), int(self.steps[-1]["width"])

    @property
    def values_per_level(self) -> float:
        """How much one level makes in the model's input, in the channel where it makes most."""
        return max(self.scale / std for std in self.std)

    def settings(
        self,
        *,
        raw: str,
        name: str,
        dtype: str,
        mask: Tensor | None = None,
        sizes: str = "",
        most_pixels: int = MOST_PIXELS,
    ) -> dict[str, Any]:
        """What `ImagesStep` is made with.

        Args:
            raw: the tensor of encoded images.
            name: of the model's input.
            dtype: of that.
            mask: the model's mask of pixels, if it has one.
            sizes: the tensor that says how large images were sent; empty: nothing wants to know.
            most_pixels: of an image, before and after any step.
        """
        assert self.size is not None
        height, width = self.size
        return {
            "input": raw,
            "output": name,
            "dtype": dtype,
            "mode": self.mode,
            "upright": self.upright,
            "whitened": self.whitened,
            "steps": [dict(step) for step in self.steps],
            "height": height,
            "width": width,
            "padded": self.padded is not None,
            "mask": mask.name if mask else "",
            "mask_dtype": mask.dtype if mask else "",
            "sizes": sizes,
            "scale": self.scale,
            "mean": list(self.mean),
            "std": list(self.std),
            "order": list(self.order),
            "formats": list(FORMATS),
            "most_pixels": most_pixels,
        }


def exact(height: int, width: int, resampling: str) -> Step:
    """Resize to a size whatever the shape."""
    return {"do": "exact", "height": height, "width": width, "filter": resampling}


def shortest(side: int, resampling: str) -> Step:
    """Resize until the shorter side is this long."""
    return {"do": "shortest", "side": side, "filter": resampling}


def fit(side: int, longest: int, resampling: str, *, multiple: int = 1) -> Step:
    """Resize until the shorter side is this long, or the longer one as long as it may be."""
    return {"do": "fit", "side": side, "longest": longest, "multiple": multiple, "filter": resampling}


def ratio(height: int, width: int, resampling: str, *, longest: float) -> Step:
    """Resize both sides by one ratio."""
    return {"do": "ratio", "height": height, "width": width, "longest": longest, "filter": resampling}


def crop(
    height: int,
    width: int,
    *,
    rounding: Literal["down", "even"],
    before: Literal["less", "more"] = "less",
    fill: Sequence[int] = (0, 0, 0),
) -> Step:
    """Cut out of the centre, or put a border around what is smaller."""
    return {"do": "crop", "height": height, "width": width, "rounding": rounding, "before": before, "fill": list(fill)}


def inexpressible(who: str, what: str) -> SourceError:
    """The refusal of preprocessing that the part for images has no setting for."""
    return SourceError(
        f"pipeline: {who} {what}, which the part for images cannot do",
        remedy="leave `pipeline` out and send what the processor makes, or change the processor's configuration",
    )
