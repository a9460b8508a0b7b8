"""Which samples are drawn: no sample in both sets, the same ones every time, classes in their shares."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any

import pytest

from plansmith.config.data import DataSpec
from plansmith.data.batches import draw
from plansmith.data.sample import Sample, halves, make_sample
from plansmith.errors import SourceError, UsageError


def texts(count: int, *, repeats: int = 1, classes: int = 0) -> list[Sample]:
    numbers = [row % count for row in range(count * repeats)]
    return [
        make_sample(row, {"text": f"text {number}"}, number % classes if classes else None)
        for row, number in enumerate(numbers)
    ]


@dataclass
class Images:
    """Samples of 10 KB each, made when they are read; `salts`: what makes those of each reading other ones."""

    count: int
    classes: int
    salts: Iterator[int] = field(default_factory=lambda: repeat(0))

    def __iter__(self) -> Iterator[Sample]:
        salt = next(self.salts)
        for row in range(self.count):
            yield make_sample(row, {"image": f"{row} {salt}".encode().ljust(10_000)}, row % self.classes)


def spec(calibration: int, evaluation: int, seed: int = 0) -> DataSpec:
    return DataSpec(path="a.txt", calibration=calibration, evaluation=evaluation, seed=seed)


def rows(samples: tuple[Sample, ...]) -> list[int]:
    return [s.row for s in samples]


def test_repeated_samples_stay_apart() -> None:
    """Repeated samples never stand in both sets."""
    drawn = draw(texts(10, repeats=5), spec(4, 6), "a.txt")
    digests = {s.digest for s in drawn.calibration} | {s.digest for s in drawn.evaluation}
    assert len(digests) == 10
    assert (drawn.available, drawn.rows) == (10, 50)
    assert max(rows(drawn.calibration) + rows(drawn.evaluation)) < 10


def test_relabelled_inputs_are_same_sample() -> None:
    """The same inputs under another label are the same sample."""
    twice = [make_sample(i, {"text": "a"}, label) for i, label in enumerate(("yes", "no"))]
    assert draw([*twice, make_sample(2, {"text": "b"})], spec(1, 1), "a.txt").available == 2


def test_draw_depends_on_seed() -> None:
    """A draw depends on the seed and not on the order of rows."""
    first, again = (draw(texts(200), spec(20, 30), "a.txt") for _ in range(2))
    assert (first.calibration, first.evaluation) == (again.calibration, again.evaluation)
    backwards = draw(texts(200)[::-1], spec(20, 30), "a.txt")
    assert rows(backwards.calibration) == rows(first.calibration)
    assert backwards.digest != first.digest
    second = draw(texts(200), spec(20, 30, seed=1), "a.txt")
    assert rows(second.calibration) != rows(first.calibration)


def test_draw_is_spread() -> None:
    """A draw is spread over the data."""
    order = rows(draw(texts(1000), spec(100, 0), "a.txt").calibration)
    assert order != sorted(order)
    assert 35 < sum(row < 500 for row in order) < 65


def test_classes_keep_their_shares() -> None:
    """Classes stand in both sets in their shares."""
    unequal = [make_sample(row, {"text": f"text {row}"}, "often" if row % 10 else "rare") for row in range(1000)]
    drawn = draw(unequal, spec(50, 100), "a.txt")
    for samples, expected in ((drawn.calibration, 5), (drawn.evaluation, 10)):
        assert abs(Counter(s.label for s in samples)["rare"] - expected) <= 1


def test_every_class_drawn_once_first() -> None:
    """Every class of many is drawn once before one is drawn twice."""
    drawn = draw(texts(1000, classes=50), spec(50, 100), "a.txt")
    assert set(Counter(s.label for s in drawn.calibration).values()) == {1}
    assert set(Counter(s.label for s in drawn.evaluation).values()) == {2}


def test_many_classes_drawn_plainly() -> None:
    """More classes than samples to draw are drawn plainly."""
    drawn = draw(texts(300, classes=100), spec(5, 5), "a.txt")
    unlabelled = draw(texts(300), spec(5, 5), "a.txt")
    assert rows(drawn.calibration) == rows(unlabelled.calibration)


@pytest.mark.parametrize(
    ("available", "counts", "remedy"),
    [
        (100, (128, 256), "set calibration: 33 and evaluation: 67"),
        (2, (2, 1), "set calibration: 1 and evaluation: 1"),
        (1, (1, 1), "give samples that differ"),
    ],
)
def test_too_few_samples_say_remedy(available: int, counts: tuple[int, int], remedy: str) -> None:
    """Too few samples say how many there are and what to set."""
    with pytest.raises(UsageError, match=f"has {available} different sample") as caught:
        draw(texts(available, repeats=2), spec(*counts), "a.txt")
    assert f"({available * 2} rows, of which {available} repeat others)" in caught.value.message
    assert remedy in caught.value.remedy


def test_memory_holds_requested_samples() -> None:
    """No more samples are in memory than were asked for however many classes there are."""
    tracemalloc.start()
    try:
        drawn = draw(Images(3000, classes=100), spec(50, 100), "images")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len({s.label for s in drawn.calibration}) == 50
    assert most < 5_000_000


def test_changed_samples_refused() -> None:
    """Samples that differ when they are read again are refused."""
    with pytest.raises(SourceError, match="images yields other samples each time") as caught:
        draw(Images(20, classes=2, salts=count()), spec(5, 5), "images")
    assert "seed it" in caught.value.remedy


def test_shortened_data_refused() -> None:
    """Data that end before what was drawn of them are refused."""
    once = iter(texts(20))
    with pytest.raises(SourceError, match="other samples each time"):
        draw(once, spec(5, 5), "a.txt")


def test_changed_label_makes_other_sample() -> None:
    """A label that changes makes another sample."""

    class Relabelled(list[Sample]):
        def __iter__(self) -> Iterator[Sample]:
            samples = [make_sample(s.row, s.values, next(labels)) for s in super().__iter__()]
            return iter(samples)

    labels = count()
    with pytest.raises(SourceError, match="other samples each time"):
        draw(Relabelled(texts(9)), spec(3, 3), "a.txt")


def test_remedy_is_enough() -> None:
    """What the remedy says is enough."""
    assert len(draw(texts(100), spec(33, 67), "a.txt").evaluation) == 67
    assert draw(texts(1), spec(1, 0), "a.txt").evaluation == ()


def test_missing_samples_are_told() -> None:
    """No samples at all are told."""
    with pytest.raises(SourceError, match=r"a\.txt holds no samples"):
        draw([], spec(1, 1), "a.txt")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"text": "ab", "text_pair": "c"}, {"text": "a", "text_pair": "bc"}),
        ({"text": "ab"}, {"text": ["ab"]}),
        ({"text": ["a", "b"]}, {"text": ["ab"]}),
        ({"image": b"x"}, {"image": b"y"}),
    ],
)
def test_different_samples_have_different_digests(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert make_sample(0, first).digest != make_sample(0, second).digest
    assert make_sample(0, first, "label").digest == make_sample(5, first).digest
    assert len(make_sample(0, first).digest) == 16


def test_pair_halves_keep_row() -> None:
    """The halves of a pair keep its row, and the first keeps its label."""
    first, second = halves(make_sample(7, {"text": "a", "text_pair": "b"}, 3.5))
    assert [(h.values["text"], h.row, h.label) for h in (first, second)] == [("a", 7, 3.5), ("b", 7, None)]
