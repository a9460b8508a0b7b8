"""Images: folders of them, and one image as PIL has it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import IMAGE, LABEL
from plansmith.data.table import Row, Table
from plansmith.errors import SourceError, first_line

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, and of its subfolders one level down, in the order of their names.

    Raises:
        SourceError: there are none, or both beside and in subfolders, so that some would have no class.
    """
    if not folder.is_dir():
        raise SourceError(f"there is no folder {folder}", remedy="check the path")
    flat = _images(folder)
    inner = [path for place in sorted(folder.iterdir()) if _is_class(place) for path in _images(place)]
    if flat and inner:
        raise SourceError(
            f"{folder} holds images both beside its subfolders and in them ({flat[0].name},"
            f" {inner[0].relative_to(folder)})",
            remedy="make one subfolder a class, or put all images into the folder itself",
        )
    if not flat and not inner:
        raise SourceError(
            f"{folder} holds no images ({', '.join(sorted(SUFFIXES))})",
            remedy="put them there, in one subfolder a class where there are classes",
        )
    return flat or inner


def read_images(folder: Path, files: Sequence[Path]) -> Table:
    """Images as rows; a subfolder's name is the label of what lies in it."""
    is_flat = all(path.parent == folder for path in files)
    classes = () if is_flat else tuple(sorted({path.parent.name for path in files}))

    def rows(_: Sequence[str]) -> Iterator[Row]:
        for path in files:
            yield Row({IMAGE: path} if is_flat else {IMAGE: path, LABEL: path.parent.name}, str(path))

    columns = (IMAGE,) if is_flat else (IMAGE, LABEL)
    return Table(folder.name, columns, rows, {} if is_flat else {LABEL: classes})


def open_image(value: Any, where: str, mode: str = "RGB") -> Image.Image:
    """An image in a mode of PIL's.

    Args:
        value: a path, the bytes of a file, an image of PIL, or an array of pixels: [height, width(, channels)], uint8.
        where: its place in the data, for errors.
        mode: "RGB" or, for one channel, "L".

    Raises:
        SourceError: it cannot be read.
    """
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    remedy = "take it out, or write it again"
    try:
        if isinstance(value, Image.Image):
            return value.convert(mode)
        if isinstance(value, Path):
            with Image.open(value) as opened:
                return opened.convert(mode)
        if isinstance(value, bytes):
            with Image.open(io.BytesIO(value)) as opened:
                return opened.convert(mode)
        pixels = np.asarray(value)
        if pixels.dtype != np.uint8 or pixels.ndim not in {2, 3}:
            raise SourceError(
                f"{where}: an image is an array of uint8 [height, width, channels], not {pixels.dtype}"
                f" {list(pixels.shape)}",
                remedy="scale its pixels to 0..255 and make them uint8, or map the column to the model's input itself",
            )
        return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels).convert(mode)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError, TypeError, ValueError) as error:
        raise SourceError(f"{where} is no image that can be read: {first_line(error)}", remedy=remedy) from error


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file() and p.name[0] != ".")


def _is_class(place: Path) -> bool:
    return place.is_dir() and not place.name.startswith(".")
