"""Reference: real inputs and the source model's FP32 outputs, stored case by case.

A case is one batch at one shape. The answers are computed once, in the process that holds the model,
and every later comparison reads them: neither the gate nor its repetition needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.records.model import AxisRange, Case

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


REFERENCE = "reference"
"""The folder of the cases, beside their record."""

# Sizes for the shapes that are traced, and that are not, where an axis has no say of its own.
_TRACED = {"batch": 2}
_TRACED_LENGTH = 16
_UNTRACED = {"batch": 3}
_UNTRACED_LENGTH = 23
_APART = 5
"""Further axes get other lengths, so that they can be told apart in an output."""

_COARSE, _PATCH = 32, 4
"""Most networks for images halve the sides five times, the first two in patches that have to be whole."""

_SMALL = 32
"""An axis that begins above this has no size that costs next to nothing: it is asked at its usual one."""

# An output above this is stored for some samples of the batch only: all are computed, these are compared.
STORED_OUTPUT_BYTES = 256 << 20

Sizes = Mapping[str, int]
"""One shape: the size of every named axis."""


@dataclass(frozen=True)
class StoredCase:
    """Stored case read back: `rows` are the samples of the batch that `answer` holds.

    `labels`: one array a kind of label, a row for every sample of the batch; empty where there are none.
    """

    name: str
    feed: Arrays
    answer: Arrays
    rows: NDArray[np.int64]
    labels: Arrays = field(default_factory=dict)


def first_sizes(able: Mapping[str, AxisRange]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the shape to trace, and another that differs in every axis that can vary.

    Small axes have other sizes than each other in both, so that a graph that takes one for another is wrong there;
    axes that begin above _SMALL are traced at their usual sizes, which may be one, and differ in the other shape.

    Args:
        able: the ranges that the model itself can take.
    """
    places = {axis: place for place, axis in enumerate(a for a in able if a not in _TRACED)}
    traced: dict[str, int] = {}
    untraced: dict[str, int] = {}
    changes: set[int] = set()
    for axis, r in able.items():
        small = _TRACED.get(axis) or _TRACED_LENGTH + _APART * places[axis]
        second_size = _UNTRACED.get(axis) or _UNTRACED_LENGTH + _APART * places[axis]
        if r.min > _SMALL:
            # Less is cheaper than more; an odd size is no multiple of anything that a model might ask for, and sizes
            # whole patches apart are told apart by models that round them away.
            change = _change(r, (second_size + _COARSE * places.get(axis, 0)) | 1, changes)
            changes.add(change)
            small, second_size = r.opt, r.opt - change if r.opt - change >= r.min else r.opt + change
        first, second = (min(max(size, r.min), r.max) for size in (small, second_size))
        if axis not in _TRACED and (first, second) in [(traced[a], untraced[a]) for a in traced if a not in _TRACED]:
            first, second = second, first
        traced[axis], untraced[axis] = first, second
    return traced, untraced


def _change(r: AxisRange, step: int, others: Collection[int]) -> int:
    """Return the offset of an axis from its opt size: as requested, or the largest that its range permits.

    Odd, and by as much as no other axis, where there is room for that.
    """
    room = max(r.opt - r.min, r.max - r.opt)
    odd = [n for n in range(room - 1 + room % 2, 0, -2) if n not in others]
    return step if step <= room else next(iter(odd), room)


def odd_sizes(able: Mapping[str, AxisRange], untraced: Sizes) -> dict[str, int]:
    """Return a shape whose large axes are whole patches of four, 8 n + 1 of them, so that every padding step pads.

    Halved and rounded up, 8 n + 1 stays odd three times, so that maps of features are padded to pairs and to windows.

    Args:
        able: the ranges that the model itself can take.
        untraced: the sizes of the other axes.
    """
    sizes = dict(untraced)
    for axis, r in able.items():
        odd = [n for n in range(_COARSE + _PATCH, r.max + 1, _COARSE) if n >= r.min]
        if r.min > _SMALL and r.step == 1 and odd:
            sizes[axis] = odd[len(odd) // 2]
    return sizes


def plan_cases(
    axes: Mapping[str, AxisRange], able: Mapping[str, AxisRange], first: tuple[Sizes, Sizes] | None = None
) -> list[tuple[str, dict[str, int]]]:
    """Plan the case names and sizes: the traced shape first, then untraced ones, then min, opt and max.

    A shape that two names share is run once, under the first.

    Args:
        axes: the ranges that the model is compiled for: min, opt and max come from them.
        able: the ranges that the model itself can take: the probes keep to these alone, so that a model
            compiled for one fixed shape is still asked at others, and its dims can be told apart.
        first: the traced and an untraced shape, where it is known which ones the model answers at.
    """
    traced, untraced = first or first_sizes(able)
    single = {axis: max(1, able[axis].min) if axis == "batch" else size for axis, size in traced.items()}
    planned = [
        ("traced", dict(traced)),
        ("single", single),
        ("untraced", dict(untraced)),
        ("min", {a: r.min for a, r in axes.items()}),
        ("opt", {a: r.opt for a, r in axes.items()}),
        ("max", {a: r.max for a, r in axes.items()}),
    ]
    unique: dict[tuple[int, ...], tuple[str, dict[str, int]]] = {}
    for name, sizes in planned:
        unique.setdefault(tuple(sizes.values()), (name, sizes))
    return list(unique.values())


def is_inside(sizes: Sizes, axes: Mapping[str, AxisRange]) -> bool:
    """Whether a shape is inside the ranges of its axes."""
    return all(r.min <= sizes[axis] <= r.max for axis, r in axes.items())


def store_case(
    name: str,
    axes: Mapping[str, int],
    feed: Arrays,
    answer: Arrays,
    folder: Path,
    *,
    in_range: bool = True,
    labels: Arrays | None = None,
) -> Case:
    """Write one case to `folder` as an .npz file."""
    import numpy as np

    stored = stored_part(name, feed, answer)
    arrays: dict[str, Any] = {f"input:{k}": v for k, v in feed.items()}
    arrays |= {f"output:{k}": v for k, v in stored.answer.items()}
    arrays |= {f"label:{k}": v for k, v in (labels or {}).items()}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", rows=stored.rows, **arrays)
    return Case(name=name, axes=dict(axes), file=f"{folder.name}/{name}.npz", in_range=in_range)


def stored_part(name: str, feed: Arrays, answer: Arrays) -> StoredCase:
    """Return a case as stored: an answer above STORED_OUTPUT_BYTES keeps some evenly spread samples, at least two."""
    import numpy as np

    batch = len(next(iter(feed.values())))
    largest = max(a.nbytes for a in answer.values())
    size = max(2, min(batch, batch * STORED_OUTPUT_BYTES // max(1, largest)))
    rows = np.unique(np.linspace(0, batch - 1, size).round().astype(np.int64))
    return StoredCase(name, feed, {k: v[rows] if v.shape[:1] == (batch,) else v for k, v in answer.items()}, rows)


def read_case(case: Case, folder: Path) -> StoredCase:
    """Read a case; `folder` is the one that holds the record."""
    import numpy as np

    with np.load(folder / case.file) as stored:
        arrays = {key: stored[key] for key in stored.files}

    def group(prefix: str) -> Arrays:
        return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

    return StoredCase(
        name=case.name,
        feed=group("input:"),
        answer=group("output:"),
        rows=arrays["rows"],
        labels=group("label:"),
    )


def read_feed(case: Case, folder: Path) -> Arrays:
    """Read only the inputs of a case; `folder` is the one that holds the record."""
    import numpy as np

    with np.load(folder / case.file) as stored:
        return {key.removeprefix("input:"): stored[key] for key in stored.files if key.startswith("input:")}


@dataclass(frozen=True)
class StoredCases:
    """Stored cases in a folder, read one at a time and iterable repeatedly."""

    cases: Sequence[Case]
    folder: Path

    def __iter__(self) -> Iterator[StoredCase]:
        """Yield each case in turn; only one is in memory."""
        return (read_case(case, self.folder) for case in self.cases)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self.cases)
