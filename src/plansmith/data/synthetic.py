"""Synthetic inputs for the checks: bundled texts, images drawn from a seed, and padding masks.

The samples of a batch differ in content and, for text, in length, so that a model that ignores its
input, its mask or the order of its samples is found out.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SENTENCES = "plansmith's sample sentences"
DRAWN_IMAGES = "drawn images"

CHANNELS = (1, 3, 4)
"""Of grey, coloured, and coloured images with a fourth layer."""

_SHORTEST_SHARE = 0.25

# What most image models are trained with: the mean and deviation of ImageNet, of pixels between 0 and 1.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)


def sample_lengths(batch: int, longest: int) -> list[int]:
    """Return sequence lengths for one batch: the first is full, the others decrease to a quarter."""
    shortest = max(1, round(longest * _SHORTEST_SHARE))
    return [longest - (longest - shortest) * i // max(1, batch - 1) for i in range(batch)]


def sample_texts(count: int, length: int, *, offset: int = 0) -> list[str]:
    """Return `count` different texts of at least `length` words each; deterministic."""
    sentences = (files("plansmith") / "samples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = []
    for i in range(count):
        text, step = "", 0
        while len(text.split()) < length or not text:
            # 7 and the number of sentences have no common divisor: every text walks through all of them.
            text += sentences[(offset + i + 7 * step) % len(sentences)] + " "
            step += 1
        texts.append(text)
    return texts


def sample_images(count: int, height: int, width: int, *, seed: int) -> list[NDArray[np.uint8]]:
    """Return `count` different RGB images, [height, width, 3] of uint8: color waves, a bright disc, some noise."""
    import numpy as np

    rng = np.random.default_rng(seed)
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :, None]
    images = []
    for _ in range(count):
        frequency = rng.uniform(1, 12, (2, 3)).astype(np.float32)
        phase = rng.uniform(0, 2 * np.pi, 3).astype(np.float32)
        waves = np.sin(2 * np.pi * (frequency[0] * x + frequency[1] * y) + phase)
        centre, radius = rng.uniform(0.2, 0.8, 2), rng.uniform(0.05, 0.3)
        disc = ((x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2) * rng.uniform(-1, 1, 3).astype(np.float32)
        noise = 0.1 * rng.standard_normal((height, width, 3), dtype=np.float32)
        images.append(np.clip(127.5 * (1 + 0.6 * waves + disc + noise), 0, 255).astype(np.uint8))
    return images


def draw_images(shape: tuple[int, ...], *, channels_first: bool, raw: bool) -> NDArray[np.float32]:
    """Return images as model input: a 4-D shape, with common normalization, or `raw` from 0 to 255."""
    import numpy as np

    count, channels, height, width = shape if channels_first else (shape[0], shape[3], shape[1], shape[2])
    pixels = np.stack(sample_images(count, height, width, seed=count)).astype(np.float32)
    if not raw:
        pixels = ((pixels / 255 - np.array(_MEAN)) / np.array(_DEVIATION)).astype(np.float32)
    grey = pixels.mean(axis=-1, keepdims=True)
    layers = {1: grey, 3: pixels}.get(channels)
    if layers is None:
        layers = np.concatenate([pixels, grey], axis=-1)
    return np.moveaxis(layers, -1, 1) if channels_first else layers


def draw_mask(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return a mask, True on content: up to each length of `sample_lengths` along the last dim."""
    import numpy as np

    lengths = np.array(sample_lengths(shape[0], shape[-1]))
    content = np.arange(shape[-1]) < lengths[:, None]
    return np.broadcast_to(content.reshape(shape[0], *(1,) * (len(shape) - 2), shape[-1]), shape)
