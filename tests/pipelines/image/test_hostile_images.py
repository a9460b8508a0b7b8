"""A file that is no image, or is made to do harm, is refused for its own request, in words, in little memory."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from plansmith.pipelines.image.preprocessing import MOST_PIXELS, ImageRecipe, crop, exact, shortest
from plansmith.pipelines.image.reference import bytes_array
from plansmith.pipelines.served.images import ImagesStep
from plansmith.pipelines.served.requests import Refusal

from ...support.pipelines.images import MADE, RAW, ask_part, encoded, photographs, shapes

USUAL = ImageRecipe(
    steps=(shortest(224, "bicubic"), crop(224, 224, rounding="even")),
    scale=1 / 255,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    upright=True,
)


def _png(width: int, height: int, *chunks: bytes) -> bytes:
    """A PNG whose header says this size; and nothing but these chunks behind it."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _endless(rows: int, row_bytes: int) -> bytes:
    """Much of nothing, in few bytes."""
    packer = zlib.compressobj(9)
    packed = [packer.compress(bytes(row_bytes)) for _ in range(rows)]
    return b"".join([*packed, packer.flush()])


def _in_format(width: int, height: int, file_format: str) -> bytes:
    return encoded(Image.new("L", (width, height)), file_format)


FLOWER = encoded(photographs()["flower"], "JPEG")
WEBP_OF_1_GIB = b"RIFF\x1e\0\0\0WEBPVP8L\x11\0\0\0/\xff\xff\xff\x0f" + bytes(16)

HOSTILE = {
    "no bytes": (b"", "it has no bytes"),
    "a text": (b"hello, world", "it is no image of a format that is read"),
    "zeros": (bytes(4096), "it is no image of a format that is read"),
    "a PDF": (b"%PDF-1.7\n1 0 obj\n", "it is no image of a format that is read"),
    "an SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "it is no image of a format that is read"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no image of a format that is read"),
    "an icon": (_in_format(16, 16, "ICO"), "it is no image of a format that is read"),
    "a portable pixmap": (_in_format(16, 16, "PPM"), "it is no image of a format that is read"),
    "half a JPEG": (FLOWER[: len(FLOWER) // 2], "it is damaged or cut off: image file is truncated"),
    "a JPEG's header": (FLOWER[:100], "it is damaged or cut off: Truncated File Read"),
    "half a PNG": (encoded(shapes()["225x224"], "PNG")[:9000], "it is damaged or cut off"),
    "a PNG of nothing": (_png(0, 0), "it is no image of a format that is read"),
    "a PNG without pixels": (_png(640, 480), "it is damaged or cut off"),
    "a bomb that its header tells": (
        _png(30_000, 30_000, _chunk(b"IDAT", _endless(64, 90_001))),
        "it has more than 89478485 pixels",
    ),
    "a bomb beyond Pillow's own limit": (
        _png(60_000, 60_000, _chunk(b"IDAT", _endless(8, 180_001))),
        "it has more than 89478485 pixels",
    ),
    "the widest PNG that there is": (_png(2**31 - 1, 1), "it has more than 89478485 pixels"),
    "a WebP of a quarter of a billion pixels": (
        WEBP_OF_1_GIB,
        "it has more than 89478485 pixels",
    ),
    "words that unpack to 200 MB": (
        _png(4, 4, _chunk(b"zTXt", b"k\0\0" + _endless(200, 1_000_000))),
        "it is damaged or cut off",
    ),
    "a line that would be stretched": (_in_format(60_000, 1, "PNG"), "of which at least 1 and at most"),
    "a column that would be stretched": (_in_format(1, 60_000, "PNG"), "of which at least 1 and at most"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_names_its_row(name: str) -> None:
    """A hostile file is refused in words that name its row."""
    file, fragment = HOSTILE[name]

    answer = ask_part(USUAL, [FLOWER, file])

    assert isinstance(answer, Refusal)
    assert answer.message.startswith("image: the image in row 1 is refused: ")
    assert fragment in answer.message
    assert len(answer.message) < 300


def test_refusal_spares_other_requests() -> None:
    """A refusal does not touch the other requests of an execution."""
    step = ImagesStep(USUAL.settings(raw=RAW, name=MADE, dtype="float32"), Path())
    bad = [{RAW: bytes_array([file])} for file, _ in HOSTILE.values()]
    good = {RAW: bytes_array([FLOWER])}

    answers = step.answer([good, *bad, good])

    assert [isinstance(answer, Refusal) for answer in answers] == [False, *[True] * len(bad), False]
    for answer in (answers[0], answers[-1]):
        assert isinstance(answer, dict)
        assert np.array_equal(answer[MADE], ask_part(USUAL, [FLOWER]))


@pytest.mark.slow
def test_damaged_files_answered_or_refused() -> None:
    """Each is a real file with some bytes changed, taken out or doubled, or cut off; the same ones every time."""
    chance = random.Random(10)
    small = photographs()["china"].resize((60, 40))
    whole = [encoded(small, file_format) for file_format in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
    whole += [encoded(small, "TIFF", compression="tiff_lzw"), encoded(small.convert("CMYK"), "JPEG", progressive=True)]
    refused = 0
    for number in range(1200):
        file = bytearray(whole[number % len(whole)])
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(file))
            kind = chance.randrange(4)
            if kind == 0:
                file[place] = chance.randrange(256)
            elif kind == 1:
                del file[place : place + chance.randint(1, 40)]
            elif kind == 2:
                file[place:place] = file[place : place + 30]
            else:
                file[min(place, 200) :][:4] = chance.randbytes(4)
            file = file or bytearray(b"x")
        answer = ask_part(USUAL, [bytes(file)])
        if isinstance(answer, Refusal):
            refused += 1
        else:
            assert answer.shape == (1, 3, 224, 224)
            assert np.isfinite(answer).all()
    assert 200 < refused < 1200


def test_settings_bound_image_size() -> None:
    """The largest image that is taken is the one that the settings say."""
    settings = USUAL.settings(raw=RAW, name=MADE, dtype="float32") | {"most_pixels": 250 * 300}
    step = ImagesStep(settings, Path())

    (output,) = step.answer([{RAW: bytes_array([_in_format(250, 300, "PNG")])}])
    (refused,) = step.answer([{RAW: bytes_array([_in_format(251, 300, "PNG")])}])

    assert isinstance(output, dict)
    assert refused == Refusal("image: the image in row 0 is refused: 251 x 300 pixels are more than 75000")
    assert MOST_PIXELS == Image.MAX_IMAGE_PIXELS


def test_image_without_pixels_refused() -> None:
    """An image without pixels left is refused."""
    recipe = ImageRecipe(
        steps=({"do": "ratio", "height": 64, "width": 64, "longest": 1.0, "filter": "bilinear"}, exact(8, 8, "box")),
        scale=1.0,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        upright=False,
    )

    answer = ask_part(recipe, [_in_format(1000, 1, "PNG")])

    assert isinstance(answer, Refusal)
    assert "1000 x 1 pixels would become 64 x 0" in answer.message


def test_damaged_orientation_is_handled() -> None:
    """A damaged orientation is a refusal or an image."""
    exif = photographs()["flower"].getexif()
    exif[0x0112] = 6
    file = bytearray(encoded(photographs()["flower"], "JPEG", exif=exif))
    start = file.index(b"Exif")
    for place in range(start, start + 40):
        broken = bytes(file[:place]) + b"\xff" + bytes(file[place + 1 :])
        answer = ask_part(USUAL, [broken])
        assert isinstance(answer, Refusal) or answer.shape == (1, 3, 224, 224)


_MEASURE = """
import resource, sys
from tests.pipelines.image.test_hostile_images import FLOWER, HOSTILE, USUAL
from tests.support.pipelines.images import ask_part
ask_part(USUAL, [FLOWER])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for file, _ in HOSTILE.values():
    ask_part(USUAL, [file])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_hostile_files_take_little_memory() -> None:
    """In MiB, of all of them, one after the other: nothing is unpacked before its size is known to be taken."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 150


def test_only_first_frame_is_read() -> None:
    """What is not the first frame is not read."""
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "lime", "blue")]
    out = BytesIO()
    frames[0].save(out, "TIFF", save_all=True, append_images=frames[1:])

    answer = ask_part(USUAL, [out.getvalue()])

    assert answer[0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]
