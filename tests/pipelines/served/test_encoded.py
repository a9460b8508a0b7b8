"""What DALI could not decode is refused before it gets there, for its own request alone."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plansmith.pipelines.served.encoded import EncodedStep
from plansmith.pipelines.served.requests import Refusal

SHORTEST = {"do": "shortest", "side": 64, "filter": "bicubic"}
CROP = {"do": "crop", "height": 64, "width": 64, "rounding": "even", "fill": [0], "before": "less"}
SETTINGS = {
    "input": "image",
    "output": "encoded",
    "most_pixels": 100_000,
    "whitened": False,
    "steps": [SHORTEST, CROP],
}


def picture(mode: str = "RGB", size: tuple[int, int] = (97, 61)) -> Image.Image:
    levels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(levels).convert(mode)


def encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    picture(mode).save(out, kind, **options)
    return out.getvalue()


def png(width: int, height: int, bits: int = 8, colours: int = 2) -> bytes:
    """One that is whole, but for pixels that nobody looks at here."""
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def request(*files: bytes) -> dict[str, np.ndarray[Any, Any]]:
    rows = np.empty((len(files), 1), object)
    rows[:, 0] = files
    return {"image": rows}


@pytest.fixture
def step() -> EncodedStep:
    return EncodedStep(SETTINGS, Path())


JPEG, PNG = encoded("JPEG"), encoded("PNG")

WHOLE: dict[str, bytes] = {
    "jpeg": JPEG,
    "png": PNG,
    "grey jpeg": encoded("JPEG", "L"),
    "CMYK jpeg": encoded("JPEG", "CMYK"),
    "progressive jpeg": encoded("JPEG", progressive=True),
    "jpeg with restart markers": encoded("JPEG", restart_marker_rows=1),
    "jpeg with filled markers": JPEG[:2] + b"\xff\xff" + JPEG[2:],
    "grey png": encoded("PNG", "L"),
    "png with a palette": encoded("PNG", "P"),
    "png with transparency": encoded("PNG", "RGBA"),
    "png of one bit": encoded("PNG", "1"),
    "bytes behind the jpeg": JPEG + bytes(500),
    "bytes behind the png": PNG + b"behind",
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_image_keeps_its_bytes(step: EncodedStep, name: str) -> None:
    """A whole image is handed on with all its bytes."""
    (answer,) = step.answer([request(WHOLE[name])])
    assert not isinstance(answer, Refusal)
    assert answer["encoded"].tobytes() == WHOLE[name]
    assert answer["encoded"].dtype == np.uint8


def test_shorter_images_padded_with_zeros(step: EncodedStep) -> None:
    """Images of a request lie side by side, with zeros behind the shorter ones."""
    (answer,) = step.answer([request(JPEG, PNG)])
    assert not isinstance(answer, Refusal)
    assert answer["encoded"].shape == (2, max(len(JPEG), len(PNG)))
    rows = [row.tobytes() for row in answer["encoded"]]
    assert [row[: len(file)] for row, file in zip(rows, (JPEG, PNG), strict=True)] == [JPEG, PNG]
    assert not rows[0][len(JPEG) :].strip(b"\0")


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "it has no bytes"),
    "text": (b"not an image", "JPEG, PNG"),
    "gif": (encoded("GIF", "P"), "JPEG, PNG"),
    "cut jpeg": (JPEG[: len(JPEG) * 2 // 3], "JPEG that is cut off"),
    "cut jpeg, zeros behind": (JPEG[: len(JPEG) * 2 // 3] + bytes(900), "JPEG that is cut off"),
    "jpeg cut in its header": (JPEG[:25], "JPEG that is cut off"),
    "jpeg without a frame": (b"\xff\xd8\xff\xda\0\x02\xff\xd9", "JPEG that is cut off"),
    "jpeg with a broken marker": (JPEG[:2] + b"\xff\xe0\0\x02\0\0" + JPEG[2:], "damaged JPEG"),
    "lossless jpeg": (JPEG.replace(b"\xff\xc0", b"\xff\xc3", 1), "lossless"),
    "jpeg of twelve bits": (JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c", 1), "12 bits"),
    "cut png": (PNG[: len(PNG) * 2 // 3], "PNG that is cut off"),
    "png with a changed byte": (PNG[:-40] + bytes([PNG[-40] ^ 1]) + PNG[-39:], "PNG that is cut off or damaged"),
    "png without pixels": (PNG[:33] + PNG[-12:], "PNG that is cut off"),
    "png of sixteen bits of grey": (png(9, 9, bits=16, colours=0), "16 bits"),
    "png of no height": (png(9, 0), "9 x 0 pixels"),
    "huge png": (png(100_000, 100_000), "at most 100000"),
    "a stripe that resizing makes huge": (png(90_000, 1), "5760000 x 64"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_undecodable_image_refused_with_words(step: EncodedStep, name: str) -> None:
    """What cannot or must not be decoded is refused in words."""
    file, fragment = HOSTILE[name]
    good, bad = step.answer([request(JPEG), request(PNG, file)])
    assert not isinstance(good, Refusal)
    assert isinstance(bad, Refusal)
    assert bad.message.startswith("image: the image in row 1 is refused: ")
    assert fragment in bad.message


def test_transparent_colour_refused(step: EncodedStep) -> None:
    """A transparent colour is refused where the source makes it white."""
    file = encoded("PNG", transparency=(1, 2, 3))
    (shown,) = step.answer([request(file)])
    (refused,) = EncodedStep({**SETTINGS, "whitened": True}, Path()).answer([request(file)])
    assert not isinstance(shown, Refusal)
    assert isinstance(refused, Refusal)
    assert "transparent colour" in refused.message


RATIO = {"do": "ratio", "height": 100, "width": 50, "filter": "bilinear"}


@pytest.mark.parametrize(
    ("longest", "is_refused"), [pytest.param(0, True, id="the shorter side"), pytest.param(1, False, id="the longer")]
)
def test_huge_scaled_stripe_refused(longest: int, is_refused: bool) -> None:
    """A stripe is refused where scaling by its ratio makes it huge."""
    step = EncodedStep({**SETTINGS, "steps": [{**RATIO, "longest": longest}]}, Path())
    (answer,) = step.answer([request(png(50_000, 2_00 // 100))])
    assert isinstance(answer, Refusal)
    assert ("2500000 x 100" in answer.message) == is_refused
    assert ("50 x 0" in answer.message) != is_refused


@pytest.mark.parametrize("seed", range(20))
def test_damaged_image_answered_or_refused(step: EncodedStep, seed: int) -> None:
    """Damage anywhere ends in an answer or in a refusal in words."""
    generator = np.random.default_rng(seed)
    damage: tuple[Callable[[bytearray], bytearray], ...] = (
        lambda file: file[: generator.integers(len(file))],
        lambda file: bytearray(b ^ int(generator.random() < 0.01) * 255 for b in file),
    )
    for file in (JPEG, PNG):
        for harm in damage:
            (answer,) = step.answer([request(bytes(harm(bytearray(file))))])
            assert isinstance(answer, Refusal) or "encoded" in answer
