"""Settings of a part that reads images, as sources give them, and real images to read."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

EXACT = {"do": "exact", "height": 224, "width": 224, "filter": "bilinear"}
SHORTEST = {"do": "shortest", "side": 235, "filter": "bicubic"}
CROP = {"do": "crop", "height": 224, "width": 224, "rounding": "even", "fill": [0, 0, 0], "before": "less"}


def settings(**changes: Any) -> dict[str, Any]:
    """Those of a ResNet of timm, but for what is changed."""
    return {
        "input": "image",
        "output": "x",
        "dtype": "float32",
        "mode": "RGB",
        "upright": False,
        "whitened": False,
        "steps": [SHORTEST, CROP],
        "height": 224,
        "width": 224,
        "padded": False,
        "mask": "",
        "mask_dtype": "",
        "sizes": "",
        "scale": 1 / 255,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "order": [0, 1, 2],
        "formats": ["JPEG", "PNG"],
        "most_pixels": 50_000_000,
        **changes,
    }


def real_images() -> list[bytes]:
    """At least 20: the photographs of scikit-learn and what scikit-image has; and parts of two of them, written anew.

    Odd sizes, upright and lying, smaller and larger than what models take; grey, transparent, CMYK and progressive.
    """
    files = [*_photographs("sklearn", "datasets/images"), *_photographs("skimage", "data")]
    images = [file.read_bytes() for file in files]
    for number, content in enumerate(images[:2]):
        whole = Image.open(io.BytesIO(content)).convert("RGB")
        for left, top, width, height in ((0, 0, 301, 407), (200, 50, 411, 230), (90, 9, 99, 333), (31, 44, 57, 58)):
            part = whole.crop((left, top, left + width, top + height))
            images += [_encoded(part, "PNG"), _encoded(part, "JPEG", quality=70 + 10 * number)]
        images += [_encoded(whole.convert("L"), "PNG"), _encoded(whole.convert("CMYK"), "JPEG")]
        images += [_encoded(whole.convert("RGBA"), "PNG"), _encoded(whole.convert("L"), "JPEG", progressive=True)]
    assert len(images) >= 20
    return images


def _photographs(package: str, folder: str) -> list[Path]:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return []
    place = Path(spec.origin).parent / folder
    return sorted(file for file in place.iterdir() if file.suffix in {".jpg", ".png"})


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()
