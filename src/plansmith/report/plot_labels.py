"""Places for short labels beside the dots of a plot, so that they hide neither dots nor each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CHARACTER, LINE = 7.0, 11.0

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Label:
    """A text with the middle of its box."""

    text: str
    x: float
    y: float


def place_labels(dots: Sequence[tuple[str, float, float, float]], frame: Box) -> list[Label]:
    """A place for each label: beside its dot where the fewest other things are.

    Args:
        dots: text, place and radius of each.
        frame: left, top, right and bottom of the plot; labels outside of it are a last resort.
    """
    obstacles = [(x - r, y - r, x + r, y + r) for _, x, y, r in dots]
    placed: list[Label] = []
    taken: list[Box] = []
    for own, (text, x, y, radius) in enumerate(dots):
        wide = CHARACTER * len(text)
        others = [box for place, box in enumerate(obstacles) if place != own] + taken

        def cost(place: tuple[float, float], wide: float = wide, others: list[Box] = others) -> float:
            box = _box(place, wide)
            return sum(_overlap(box, other) for other in others) + 10 * _outside(box, frame)

        best = min(_places(x, y, radius, wide), key=cost)
        placed.append(Label(text, *best))
        taken.append(_box(best, wide))
    return placed


def _places(x: float, y: float, radius: float, wide: float) -> Iterator[tuple[float, float]]:
    """The middles of boxes around a dot, the most legible first; then the same farther off."""
    for far in (2.0, 9.0, 16.0):
        aside, above = radius + far + wide / 2, radius + far + LINE / 2
        yield from ((x + aside, y), (x, y - above), (x - aside, y), (x, y + above))
        slanted_x, slanted_y = 0.75 * aside, 0.75 * above
        yield from ((x + slanted_x, y - slanted_y), (x + slanted_x, y + slanted_y))
        yield from ((x - slanted_x, y - slanted_y), (x - slanted_x, y + slanted_y))


def _box(middle: tuple[float, float], wide: float) -> Box:
    x, y = middle
    return (x - wide / 2, y - LINE / 2, x + wide / 2, y + LINE / 2)


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)


def _outside(box: Box, frame: Box) -> float:
    return sum(
        max(beyond, 0.0) for beyond in (frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3])
    )
