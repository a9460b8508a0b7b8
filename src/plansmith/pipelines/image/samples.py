"""Requests of images to ask a pipeline with: drawn here, in the files and modes that clients send.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from plansmith.data import synthetic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

_ORIENTATION = 0x0112
_QUARTER_TURN = 6
_QUALITY = 90


def image_questions(raw: str, *, max_batch: int, one_size: bool = False) -> dict[str, dict[str, NDArray[np.generic]]]:
    """Requests by name; the same ones every time.

    Args:
        raw: name of the tensor of encoded images.
        max_batch: how many images a request may have.
        one_size: whether those of a request have to be of one size.
    """
    photo, tall, wide = (_drawn(*size) for size in ((300, 400, 1), (500, 281, 2), (197, 640, 3)))
    beside = [_drawn(300, 400, seed) for seed in (5, 6)] if one_size else [wide, tall]
    see_through = photo.convert("RGBA")
    see_through.putalpha(tall.convert("L").resize(photo.size))
    turned = photo.getexif()
    turned[_ORIENTATION] = _QUARTER_TURN
    requests = {
        "jpeg": [_encoded(photo, "JPEG")],
        "png": [_encoded(tall, "PNG")],
        "batch": [_encoded(beside[0], "JPEG"), _encoded(beside[1], "PNG"), _encoded(photo, "JPEG")],
        "grey": [_encoded(photo.convert("L"), "JPEG"), _encoded(beside[0].convert("LA"), "PNG")],
        "palette": [_encoded(tall.convert("P"), "PNG")],
        "transparent": [_encoded(see_through, "PNG")],
        "cmyk": [_encoded(wide.convert("CMYK"), "JPEG")],
        "turned": [_encoded(photo, "JPEG", exif=turned)],
        "tiny": [_encoded(_drawn(9, 7, 4), "PNG")],
    }
    return {name: {raw: bytes_array(files[:max_batch])} for name, files in requests.items()}


def files_of(feed: Any, raw: str) -> Iterator[bytes]:
    """The encoded images of a request, row by row."""
    yield from feed[raw].reshape(-1).tolist()


def bytes_array(files: Sequence[bytes]) -> NDArray[np.generic]:
    """Encoded images as they travel: [batch, 1]."""
    import numpy as np

    array = np.empty((len(files), 1), object)
    array[:, 0] = files
    return array


def _drawn(height: int, width: int, seed: int) -> Image:
    from PIL import Image

    return Image.fromarray(synthetic.sample_images(1, height, width, seed=seed)[0])


def _encoded(image: Image, file_format: str, **options: Any) -> bytes:
    out = BytesIO()
    if file_format == "JPEG":
        options["quality"] = _QUALITY
    image.save(out, file_format, **options)
    return out.getvalue()
