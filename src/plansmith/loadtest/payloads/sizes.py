"""The sizes of the requests of a load test: mixed, and the same for the same seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plansmith.records.model import BATCH, AxisRange

DEFAULT_REQUESTS = 64
"""Different requests per model, which are sent repeatedly."""


@dataclass(frozen=True)
class SizeMix:
    """How many requests there are, and of which sizes.

    Attributes:
        count: of requests.
        batches: batch sizes, equally frequent; those of the model's range when empty.
        seed: determines all that is drawn.
    """

    count: int = DEFAULT_REQUESTS
    batches: tuple[int, ...] = ()
    seed: int = 0

    def generator(self) -> random.Random:
        """A new random generator for the seed."""
        return random.Random(self.seed)  # noqa: S311 - no secret depends on it

    def draw_batch(self, generator: random.Random, batch: AxisRange) -> int:
        """A batch size."""
        return generator.choice(self.batches) if self.batches else draw_size(generator, batch)

    def draw(self, axes: Mapping[str, AxisRange]) -> Iterator[dict[str, int]]:
        """The sizes of all axes for one request after the other, without end."""
        generator = self.generator()
        while True:
            yield {
                axis: self.draw_batch(generator, sizes) if axis == BATCH else draw_size(generator, sizes)
                for axis, sizes in axes.items()
            }


def draw_size(generator: random.Random, axis: AxisRange) -> int:
    """A size of an axis, log-uniformly distributed: half the size is as likely as twice the size."""
    if axis.max <= axis.min:
        return axis.min
    drawn = math.exp(generator.uniform(math.log(max(axis.min, 1)), math.log(axis.max)))
    size = round(drawn / axis.step) * axis.step
    return min(max(size, axis.min), axis.max)
