"""JPEG and PNG completeness check: reads the file structure without decoding a pixel.

JPEG: ITU-T T.81, annex B. PNG: https://www.w3.org/TR/png, chapters 5 and 11.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_END_OF_IMAGE, _START_OF_SCAN = 0xD9, 0xDA
_ALONE = {0x01, *range(0xD0, 0xD8)}
"""Markers of JPEG that no length follows."""

_FRAMES = {0xC0, 0xC1, 0xC2}
"""Baseline, extended and progressive JPEG; others are lossless, in hierarchies, or with arithmetic codes."""

_OTHER_FRAMES = {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SIZES_OF_IHDR = 13


class Unfit(Exception):
    """Unfit image: why it cannot or must not be decoded."""


def check_file(file: bytes, steps: Sequence[Mapping[str, Any]], most_pixels: int, *, whitened: bool) -> None:
    """Require that an image is complete, and small enough before and after resizing.

    Args:
        file: its bytes.
        steps: that bring it to size.
        most_pixels: that it may have, before and after each of them.
        whitened: whether a file's one transparent colour would have to become white, which DALI does not do.

    Raises:
        Unfit: it is not.
    """
    if not file:
        raise Unfit("it has no bytes")
    if file.startswith(_JPEG):
        width, height = _jpeg(file)
    elif file.startswith(_PNG):
        width, height = _png(file, whitened=whitened)
    else:
        raise Unfit("it is no image of a format that is read (JPEG, PNG), or is damaged")
    if min(width, height) < 1:
        raise Unfit(f"it says that it has {width} x {height} pixels")
    for across, down in ((width, height), *_resized(width, height, steps)):
        if min(across, down) < 1 or across * down > most_pixels:
            raise Unfit(
                f"its shape of {width} x {height} pixels is, or would become, {across} x {down}, of which at least 1"
                f" and at most {most_pixels} are taken"
            )


def _jpeg(file: bytes) -> tuple[int, int]:
    """Return width and height from a JPEG's frame header; the scan must be present and complete."""
    size: tuple[int, int] | None = None
    at = 2
    while at + 4 <= len(file):
        if file[at] != 0xFF:
            raise Unfit("it is a damaged JPEG")
        marker = file[at + 1]
        if marker == 0xFF or marker in _ALONE:  # bytes that fill, and markers without a segment
            at += 1 if marker == 0xFF else 2
            continue
        length = int.from_bytes(file[at + 2 : at + 4], "big")
        if marker == _START_OF_SCAN:
            if size is None or file.find(bytes([0xFF, _END_OF_IMAGE]), at + 2 + length) < 0:
                break
            return size
        if marker == _END_OF_IMAGE or length < 2:
            break
        if marker in _OTHER_FRAMES:
            raise Unfit("it is a JPEG that is lossless, hierarchical or has arithmetic codes")
        if marker in _FRAMES:
            size = _frame(file[at + 4 : at + 2 + length])
        at += 2 + length
    raise Unfit("it is a JPEG that is cut off or damaged")


def _frame(header: bytes) -> tuple[int, int]:
    if len(header) < 6:
        raise Unfit("it is a JPEG that is cut off or damaged")
    if header[0] != 8:
        raise Unfit(f"it is a JPEG of {header[0]} bits a sample, and 8 are read")
    return int.from_bytes(header[3:5], "big"), int.from_bytes(header[1:3], "big")


def _png(file: bytes, *, whitened: bool) -> tuple[int, int]:
    """Return a PNG's width and height; all chunks up to the final one must be complete."""
    size: tuple[int, int] | None = None
    at, has_pixels = len(_PNG), False
    while at + 12 <= len(file):
        end = at + 12 + int.from_bytes(file[at : at + 4], "big")
        kind = file[at + 4 : at + 8]
        if end > len(file) or zlib.crc32(file[at + 4 : end - 4]) != int.from_bytes(file[end - 4 : end], "big"):
            break
        if size is None:
            if kind != b"IHDR" or end - at != 12 + _SIZES_OF_IHDR:
                break
            size = _header(file[at + 8 : end - 4])
        if kind == b"tRNS" and whitened:
            raise Unfit("it is a PNG that names a transparent colour: make it one with an alpha channel, or without")
        has_pixels |= kind == b"IDAT"
        if kind == b"IEND" and has_pixels:
            return size
        at = end
    raise Unfit("it is a PNG that is cut off or damaged")


def _header(header: bytes) -> tuple[int, int]:
    bits, colours = header[8], header[9]
    if bits == 16 and colours == 0:
        raise Unfit("it is a grey PNG of 16 bits a pixel, whose levels are not those of others: make it one of 8")
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")


def _resized(width: int, height: int, steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield width and height after each step; applying the EXIF orientation only swaps the two."""
    for step in steps:
        if step["do"] == "shortest":
            shorter = min(width, height)
            width, height = step["side"] * width // shorter, step["side"] * height // shorter
        elif step["do"] == "ratio":
            choose = min if step["longest"] else max
            width, height = (
                choose(round(width * step["height"] / height), step["width"]),
                choose(round(height * step["width"] / width), step["height"]),
            )
        else:
            width, height = step["width"], step["height"]
        yield width, height
