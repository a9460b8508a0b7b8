"""Photographs and drawings as people send them, and how a part is asked about them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from plansmith.pipelines.image.preprocessing import ImageRecipe
from plansmith.pipelines.image.reference import bytes_array
from plansmith.pipelines.served.images import ImagesStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

RAW, MADE = "image", "pixel_values"
PHOTOGRAPHS_OF_SKIMAGE = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "hubble_deep_field.jpg",
    "rocket.jpg",
)


@cache
def photographs() -> dict[str, Image.Image]:
    """scikit-learn's two and, where it is installed, scikit-image's, in RGB."""
    from sklearn.datasets import load_sample_images

    names = ("china", "flower")
    by_name = {name: Image.fromarray(pixels) for name, pixels in zip(names, load_sample_images().images, strict=True)}
    spec = importlib.util.find_spec("skimage")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in PHOTOGRAPHS_OF_SKIMAGE:
            with Image.open(Path(folder, "data", file)) as opened:
                by_name[file] = opened.convert("RGB")
    return by_name


def shapes() -> dict[str, Image.Image]:
    """A photograph in the sizes where rounding shows: odd ones, narrow ones, and smaller than any model's."""
    flower = photographs()["flower"]
    sizes = ((641, 427), (427, 641), (225, 224), (224, 224), (131, 977), (977, 131), (64, 63), (3, 5), (1, 1))
    return {f"{width}x{height}": flower.resize((width, height)) for width, height in sizes}


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """The bytes of a file."""
    out = BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


def files_of_all_kinds() -> Iterator[tuple[str, bytes]]:
    """One photograph in every mode and format that people have."""
    flower = photographs()["flower"].resize((320, 213))
    grey, see_through, palette = flower.convert("L"), flower.convert("RGBA"), flower.quantize(64)
    see_through.putalpha(grey)
    turned = flower.getexif()
    for file_format in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        yield f"RGB {file_format}", encoded(flower, file_format)
    for file_format in ("JPEG", "PNG", "BMP", "TIFF"):
        yield f"L {file_format}", encoded(grey, file_format)
    for file_format in ("PNG", "WEBP", "TIFF"):
        yield f"RGBA {file_format}", encoded(see_through, file_format)
    yield "LA PNG", encoded(see_through.convert("LA"), "PNG")
    yield "P PNG", encoded(palette, "PNG")
    yield "P PNG with one transparent colour", encoded(palette, "PNG", transparency=3)
    yield "P PNG with transparencies", encoded(palette, "PNG", transparency=bytes(range(0, 256, 4)))
    yield "RGB PNG with a transparent colour", encoded(flower, "PNG", transparency=flower.getpixel((9, 9)))
    yield "L PNG with a transparent colour", encoded(grey, "PNG", transparency=grey.getpixel((9, 9)))
    yield "P GIF", encoded(palette, "GIF", transparency=5)
    yield "1 PNG", encoded(grey.convert("1"), "PNG")
    yield "CMYK JPEG", encoded(flower.convert("CMYK"), "JPEG")
    yield "CMYK TIFF", encoded(flower.convert("CMYK"), "TIFF")
    yield "progressive JPEG", encoded(flower, "JPEG", progressive=True, subsampling=0)
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    yield "16 bit PNG", encoded(deep, "PNG")
    yield "16 bit TIFF", encoded(deep, "TIFF")
    for orientation in range(2, 9):
        turned[0x0112] = orientation
        yield f"turned JPEG {orientation}", encoded(flower, "JPEG", exif=turned)
    yield "animated GIF", encoded(palette, "GIF", save_all=True, append_images=[palette.rotate(90)])


def timm_scores(model: Any, files: Sequence[bytes]) -> Any:
    """What a model of timm gives the classes of image files, by its own transform."""
    import timm
    import torch

    transform: Any = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    with torch.inference_mode():
        pixels = torch.stack([transform(Image.open(BytesIO(file)).convert("RGB")) for file in files])
        return model(pixels).softmax(-1)


def ask_part(recipe: ImageRecipe, files: Sequence[bytes], dtype: str = "float32") -> Any:
    """What the part answers to one request of these files: a tensor, or a refusal."""
    step = ImagesStep(recipe.settings(raw=RAW, name=MADE, dtype=dtype), Path())
    (answer,) = step.answer([{RAW: bytes_array(files)}])
    return answer[MADE] if isinstance(answer, dict) else answer


def levels(ours: NDArray[np.generic], own: NDArray[np.generic], recipe: ImageRecipe) -> NDArray[np.float64]:
    """How far two tensors are apart, in levels of 0 to 255."""
    assert ours.shape == own.shape
    assert ours.dtype == own.dtype
    apart: NDArray[np.float64] = np.abs(ours.astype(np.float64) - own.astype(np.float64)) / recipe.values_per_level
    return apart
