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
from plansmith.data.sample import Sample, halves, make_sample
from plansmith.data.split import draw
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


def test_repeated_samples_never_stand_in_both_sets() -> None:
    drawn = draw(texts(10, repeats=5), spec(4, 6), "a.txt")
    digests = {s.digest for s in drawn.calibration} | {s.digest for s in drawn.evaluation}
    assert len(digests) == 10
    assert (drawn.available, drawn.rows) == (10, 50)
    assert max(rows(drawn.calibration) + rows(drawn.evaluation)) < 10


def test_the_same_inputs_under_another_label_are_the_same_sample() -> None:
    twice = [make_sample(i, {"text": "a"}, label) for i, label in enumerate(("yes", "no"))]
    assert draw([*twice, make_sample(2, {"text": "b"})], spec(1, 1), "a.txt").available == 2


def test_a_draw_depends_on_the_seed_and_not_on_the_order_of_rows() -> None:
    first, again = (draw(texts(200), spec(20, 30), "a.txt") for _ in range(2))
    assert (first.calibration, first.evaluation) == (again.calibration, again.evaluation)
    backwards = draw(texts(200)[::-1], spec(20, 30), "a.txt")
    assert rows(backwards.calibration) == rows(first.calibration)
    assert backwards.digest != first.digest
    other = draw(texts(200), spec(20, 30, seed=1), "a.txt")
    assert rows(other.calibration) != rows(first.calibration)


def test_a_draw_is_spread_over_the_data() -> None:
    found = rows(draw(texts(1000), spec(100, 0), "a.txt").calibration)
    assert found != sorted(found)
    assert 35 < sum(row < 500 for row in found) < 65


def test_classes_stand_in_both_sets_in_their_shares() -> None:
    unequal = [make_sample(row, {"text": f"text {row}"}, "often" if row % 10 else "rare") for row in range(1000)]
    drawn = draw(unequal, spec(50, 100), "a.txt")
    for samples, expected in ((drawn.calibration, 5), (drawn.evaluation, 10)):
        assert abs(Counter(s.label for s in samples)["rare"] - expected) <= 1


def test_every_class_of_many_is_drawn_once_before_one_is_drawn_twice() -> None:
    drawn = draw(texts(1000, classes=50), spec(50, 100), "a.txt")
    assert set(Counter(s.label for s in drawn.calibration).values()) == {1}
    assert set(Counter(s.label for s in drawn.evaluation).values()) == {2}


def test_more_classes_than_samples_to_draw_are_drawn_plainly() -> None:
    drawn = draw(texts(300, classes=100), spec(5, 5), "a.txt")
    unlabelled = draw(texts(300), spec(5, 5), "a.txt")
    assert rows(drawn.calibration) == rows(unlabelled.calibration)


@pytest.mark.parametrize(
    ("available", "wanted", "remedy"),
    [
        (100, (128, 256), "set calibration: 33 and evaluation: 67"),
        (2, (2, 1), "set calibration: 1 and evaluation: 1"),
        (1, (1, 1), "give samples that differ"),
    ],
)
def test_too_few_samples_say_how_many_there_are_and_what_to_set(
    available: int, wanted: tuple[int, int], remedy: str
) -> None:
    with pytest.raises(UsageError, match=f"has {available} different sample") as caught:
        draw(texts(available, repeats=2), spec(*wanted), "a.txt")
    assert f"({available * 2} rows, of which {available} repeat others)" in caught.value.message
    assert remedy in caught.value.remedy


def test_no_more_samples_are_in_memory_than_were_asked_for_however_many_classes_there_are() -> None:
    tracemalloc.start()
    try:
        drawn = draw(Images(3000, classes=100), spec(50, 100), "images")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len({s.label for s in drawn.calibration}) == 50
    assert most < 5_000_000


def test_samples_that_are_others_when_they_are_read_again_are_refused() -> None:
    with pytest.raises(SourceError, match="images yields other samples each time") as caught:
        draw(Images(20, classes=2, salts=count()), spec(5, 5), "images")
    assert "seed it" in caught.value.remedy


def test_data_that_end_before_what_was_drawn_of_them_are_refused() -> None:
    once = iter(texts(20))
    with pytest.raises(SourceError, match="other samples each time"):
        draw(once, spec(5, 5), "a.txt")


def test_a_label_that_changes_makes_another_sample() -> None:
    class Relabelled(list[Sample]):
        def __iter__(self) -> Iterator[Sample]:
            found = [make_sample(s.row, s.values, next(labels)) for s in super().__iter__()]
            return iter(found)

    labels = count()
    with pytest.raises(SourceError, match="other samples each time"):
        draw(Relabelled(texts(9)), spec(3, 3), "a.txt")


def test_what_the_remedy_says_is_enough() -> None:
    assert len(draw(texts(100), spec(33, 67), "a.txt").evaluation) == 67
    assert draw(texts(1), spec(1, 0), "a.txt").evaluation == ()


def test_no_samples_at_all_are_told() -> None:
    with pytest.raises(SourceError, match=r"a\.txt holds no samples"):
        draw([], spec(1, 1), "a.txt")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"text": "ab", "text_pair": "c"}, {"text": "a", "text_pair": "bc"}),
        ({"text": "ab"}, {"text": ["ab"]}),
        ({"text": ["a", "b"]}, {"text": ["ab"]}),
        ({"image": b"x"}, {"image": b"y"}),
    ],
)
def test_different_samples_have_different_digests(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert make_sample(0, one).digest != make_sample(0, other).digest
    assert make_sample(0, one, "label").digest == make_sample(5, one).digest
    assert len(make_sample(0, one).digest) == 16


def test_the_halves_of_a_pair_keep_its_row_and_the_first_its_label() -> None:
    first, second = halves(make_sample(7, {"text": "a", "text_pair": "b"}, 3.5))
    assert [(h.values["text"], h.row, h.label) for h in (first, second)] == [("a", 7, 3.5), ("b", 7, None)]
