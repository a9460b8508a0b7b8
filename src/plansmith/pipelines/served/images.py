"""Image decoding: turns the bytes of JPEG, PNG and other files into the model's input.

What cannot be read, or is so large that reading it would harm others, is refused for its own request alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .framing import Unfit, framed
from .requests import Arrays, Refusal

if TYPE_CHECKING:
    from PIL import Image

_LEVELS = 256


class ImagesStep:
    """Image step: decodes, resizes, scales and normalizes.

    Settings:
        input: name of the tensor of bytes, [batch, 1].
        output: name of the model's input, [batch, channels, height, width].
        dtype: of that, by NumPy's name.
        mode: "RGB", or "L" for one channel.
        upright: whether an image is turned as its EXIF orientation says.
        whitened: whether the one transparent colour that some files name becomes white; what else is transparent shows.
        steps: that bring it to size (see `framing`).
        height, width: what they end with, or what zeros fill it up to at the right and below (`padded`).
        padded: whether zeros do.
        mask: name of the model's mask of pixels [batch, height, width], 1 where the image is; empty: it has none.
        mask_dtype: of that.
        sizes: name of an output [batch, 2] of the height and width that an image was sent in, upright; empty: none.
        scale, mean, std: a level of 0 to 255 becomes (level * scale - mean) / std, by channel of the mode.
        order: which channel of the mode goes to each channel of the output.
        formats: that are read, by Pillow's names; no others are tried.
        most_pixels: of an image, before and after any step.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; needs no other files in the folder."""
        del folder
        self._settings = settings
        levels = np.arange(_LEVELS, dtype=np.float64)[None]
        mean, std = (np.array(settings[name], np.float64)[:, None] for name in ("mean", "std"))
        # Every pixel has one of 256 levels, so normalising is looking up.
        self._values = ((levels * settings["scale"] - mean) / std).astype(settings["dtype"])

    def answer(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Refusal]:
        """Return the model's input for each request, or the reason for refusing it."""
        return [self._answered(feed[self._settings["input"]]) for feed in feeds]

    def _answered(self, files: np.ndarray[Any, Any]) -> Arrays | Refusal:
        settings = self._settings
        rows = files.reshape(-1).tolist()
        shape = (len(rows), len(settings["order"]), settings["height"], settings["width"])
        batch = (np.zeros if settings["padded"] else np.empty)(shape, settings["dtype"])
        mask = np.zeros((len(rows), *shape[2:]) if settings["mask"] else 0, settings["mask_dtype"] or bool)
        sizes = np.empty((len(rows), 2), np.int32)
        for row, file in enumerate(rows):
            try:
                pixels, sizes[row] = self._pixels(file)
            except Unfit as problem:
                return Refusal(f"{settings['input']}: the image in row {row} is refused: {problem}")
            height, width, _ = pixels.shape
            for to, channel in enumerate(settings["order"]):
                batch[row, to, :height, :width] = self._values[channel][pixels[..., channel]]
            if settings["mask"]:
                mask[row, :height, :width] = 1
        named = {settings["output"]: batch, settings["mask"]: mask, settings["sizes"]: sizes}
        return {name: array for name, array in named.items() if name}

    def _pixels(self, file: bytes) -> tuple[np.ndarray[Any, Any], tuple[int, int]]:
        """Return an image in its final size, [height, width, channels], and its original height and width.

        Raises:
            Unfit: there is no such image in these bytes.
        """
        from PIL import Image, UnidentifiedImageError

        most, formats = self._settings["most_pixels"], self._settings["formats"]
        if not file:
            raise Unfit("it has no bytes")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's words on odd files; those that count are errors
                image = self._decoded(file)
                pixels = np.asarray(framed(image, self._settings["steps"], most))
        except Unfit:
            raise
        except UnidentifiedImageError as error:
            raise Unfit(f"it is no image of a format that is read ({', '.join(formats)}), or is damaged") from error
        except Image.DecompressionBombError as error:
            raise Unfit(f"it has more than {most} pixels") from error
        except MemoryError as error:
            raise Unfit("there is no memory for it") from error
        except Exception as error:  # a damaged file makes decoders raise anything, such as struct.error
            raise Unfit(f"it is damaged or cut off: {error or type(error).__name__}") from error
        height, width = self._settings["height"], self._settings["width"]
        if pixels.shape[0] > height or pixels.shape[1] > width:
            raise Unfit(f"it becomes {pixels.shape[1]} x {pixels.shape[0]} pixels, more than {width} x {height}")
        return pixels if pixels.ndim == 3 else pixels[..., None], (image.height, image.width)

    def _decoded(self, file: bytes) -> Image.Image:
        """Decode an image in the color mode, upright if required; of several in a file, the first."""
        from PIL import Image, ImageOps

        settings = self._settings
        with Image.open(BytesIO(file), formats=settings["formats"]) as opened:
            image: Image.Image = opened
            if image.width * image.height > settings["most_pixels"]:  # the header says so: nothing is decoded yet
                raise Unfit(f"{image.width} x {image.height} pixels are more than {settings['most_pixels']}")
            image.load()
            if settings["upright"]:
                ImageOps.exif_transpose(image, in_place=True)
        if image.mode != settings["mode"]:  # a copy of the same mode would be memory for nothing
            image = image.convert(settings["mode"])
        if not settings["whitened"] or image.info.get("transparency") is None:
            return image
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert(settings["mode"])
