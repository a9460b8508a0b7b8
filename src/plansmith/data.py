"""Real inputs for the checks: texts that ship with plansmith, and images drawn from a seed.

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

_SHORTEST_SHARE = 0.25


def sample_lengths(batch: int, longest: int) -> list[int]:
    """Lengths for the samples of one batch: the first fills it, the others go down to a quarter."""
    shortest = max(1, round(longest * _SHORTEST_SHARE))
    return [longest - (longest - shortest) * i // max(1, batch - 1) for i in range(batch)]


def sample_texts(count: int, words: int, *, offset: int = 0) -> list[str]:
    """`count` different texts of at least `words` words each, the same ones every time."""
    sentences = (files("plansmith") / "samples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = []
    for i in range(count):
        text, step = "", 0
        while len(text.split()) < words or not text:
            # 7 and the number of sentences have no common divisor: every text walks through all of them.
            text += sentences[(offset + i + 7 * step) % len(sentences)] + " "
            step += 1
        texts.append(text)
    return texts


def sample_images(count: int, height: int, width: int, *, seed: int) -> list[NDArray[np.uint8]]:
    """`count` different RGB images, [height, width, 3] of uint8: waves of colour, a bright disc, some noise."""
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
