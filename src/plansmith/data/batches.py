"""Batch planning: how samples are grouped into batches, by sizes alone."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from plansmith.config.data import DataSpec
from plansmith.data.sample import Sample, changing
from plansmith.errors import SourceError, UsageError
from plansmith.formatting import count
from plansmith.records.model import AxisRange

# Smaller batches cost more time in asking than they save in memory.
_USUAL_BATCH = 8
_LARGEST_JOINED = 4
"""Ranges at the longest sequence need several samples, and not the memory of the largest batch."""
_MOST_OWN_CASES = 16


def evaluation_batches(count: int, batch: AxisRange, *, paired: bool) -> list[int]:
    """Return batch sizes that hold `count` samples in order.

    What is left over, fewer than the smallest batch, goes to no batch; pairs are kept in one where two fit.
    """
    unit = 2 if paired and batch.max > 1 else 1
    smallest, largest = math.ceil(batch.min / unit), batch.max // unit
    usual = min(max(batch.opt, _USUAL_BATCH) // unit, largest)
    units = count // unit
    full, left = divmod(units, usual)
    sizes = [usual] * full + ([left] if left else [])
    if 0 < left < smallest:
        together = sizes.pop() + (sizes.pop() if full else 0)
        sizes += [together - smallest, smallest] if together >= 2 * smallest else [usual] * (full > 0)
    return [size * unit for size in sizes]


def calibration_batches(count: int, batch: AxisRange, *, paired: bool) -> list[int]:
    """Return varied batch sizes; the largest that half of the samples fill comes last; as `evaluation_batches`."""
    unit = 2 if paired and batch.max > 1 else 1
    smallest, largest = math.ceil(batch.min / unit), batch.max // unit
    units = count // unit
    last = max(min(largest, units // 2), min(smallest, units))
    usual = min(max(smallest, batch.opt // unit), max(last, smallest))
    sizes: list[int] = []
    left = units - last
    for preferred in cycle(dict.fromkeys((usual, smallest, max(smallest, (usual + smallest) // 2)))):
        size = min(preferred, left)
        if size < smallest:
            break
        sizes.append(size)
        left -= size
    if 0 < left <= largest - last:
        last += left
    return [size * unit for size in (*sizes, last) if size >= smallest]


def joined_batch(batch: AxisRange) -> int:
    """Return the batch size at the longest sequence."""
    return max(batch.min, min(batch.max, _LARGEST_JOINED))


def own_shapes(axes: Mapping[str, AxisRange], batch_axis: str, samples: int) -> list[dict[str, int]]:
    """Return shapes of different sizes, ascending, that together hold a number of samples.

    The batch is smaller where everything else is largest.
    """
    batch = axes.get(batch_axis, AxisRange(min=1, opt=1, max=1))
    others = {axis: r for axis, r in axes.items() if axis != batch_axis}
    if not others:
        return [{batch_axis: size} for size in _own_batches(batch, samples)] if axes else [{}]
    sizes = (batch.opt, batch.min, joined_batch(batch))
    steps = max(2, min(_MOST_OWN_CASES, math.ceil(samples * len(sizes) / sum(sizes)) + 1))
    shapes: list[dict[str, int]] = []
    for step in range(steps):
        size = joined_batch(batch) if step == steps - 1 else sizes[step % len(sizes)]
        shape = {axis: _between(r, step / (steps - 1)) for axis, r in others.items()} | {batch_axis: size}
        shape = {axis: shape[axis] for axis in axes}
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def _own_batches(batch: AxisRange, samples: int) -> list[int]:
    """Return distinct batch sizes, the usual one first; equal sizes would hold the same samples."""
    sizes: list[int] = []
    for size in dict.fromkeys((batch.opt, *range(batch.min, batch.max + 1))):
        if sum(sizes) >= samples:
            break
        sizes.append(size)
    return sizes


def _between(axis: AxisRange, share: float) -> int:
    """Return the size at a fraction of the range on a geometric scale: as many short ones as long ones."""
    return round(axis.min * math.pow(axis.max / axis.min, share) / axis.step) * axis.step


@dataclass(frozen=True)
class Draw:
    """Drawn samples.

    Args:
        calibration: in the order of the draw.
        evaluation: others, likewise.
        available: how many different samples there are.
        rows: how many rows there are.
        digest: of all samples and labels in the order of the data.
    """

    calibration: tuple[Sample, ...]
    evaluation: tuple[Sample, ...]
    available: int
    rows: int
    digest: str


def draw(samples: Iterable[Sample], spec: DataSpec, name: str) -> Draw:
    """Draw the two sample sets of a spec. Skips samples whose inputs occurred earlier in the data.

    Args:
        samples: all, in the order of the data; every iteration begins with the first one.
        spec: says how many, and the seed.
        name: of the data, for errors.

    Raises:
        SourceError: there are no samples, or others each time.
        UsageError: there are fewer than the spec wants.
    """
    total = spec.calibration + spec.evaluation
    lots = _Lots(spec.seed, total)
    digests: set[str] = set()
    everything, rows = hashlib.sha256(), 0
    for sample in samples:
        rows += 1
        everything.update(_sample_bytes(sample))
        if sample.digest not in digests:
            digests.add(sample.digest)
            lots.add(sample)
    if not digests:
        raise SourceError(f"{name} holds no samples", remedy="give it some, or name other data")
    if len(digests) < total:
        raise _too_few(spec, name, len(digests), rows)
    ordered = _read_again(samples, lots.ordered()[:total], name)
    return Draw(
        calibration=tuple(ordered[: spec.calibration]),
        evaluation=tuple(ordered[spec.calibration :]),
        available=len(digests),
        rows=rows,
        digest=everything.hexdigest(),
    )


@dataclass(frozen=True)
class _Place:
    """Sample position with a digest of its values and label."""

    row: int
    digest: bytes


def _read_again(samples: Iterable[Sample], places: Sequence[_Place], name: str) -> list[Sample]:
    """Read the samples at these positions again, in their order.

    Raises:
        SourceError: other samples stand there now.
    """
    missing = {place.row: place for place in places}
    samples_by_row: dict[int, Sample] = {}
    for sample in samples:
        if (place := missing.pop(sample.row, None)) is not None:
            if place.digest != _digest_of(sample):
                raise changing(name)
            samples_by_row[sample.row] = sample
            if not missing:
                return [samples_by_row[place.row] for place in places]
    raise changing(name)


class _Lots:
    """Stratified sampling: keeps the lowest random keys of each class so far.

    Args:
        seed: what the lots are made with.
        total: how many samples will be taken in all.
    """

    def __init__(self, seed: int, total: int) -> None:
        self._seed = seed
        self._total = total
        self._groups: dict[Any, list[tuple[int, int, bytes]]] = {}
        self._counts: Counter[Any] = Counter()
        self._has_classes = True

    def add(self, sample: Sample) -> None:
        group = _class_of(sample.label) if self._has_classes else None
        self._counts[group] += 1
        entries = self._groups.setdefault(group, [])
        # The heap's first is the highest lot, which goes when a lower one comes.
        entry = (-_lot(self._seed, sample.digest), -sample.row, _digest_of(sample))
        if len(entries) < self._total:
            heapq.heappush(entries, entry)
        else:
            heapq.heappushpop(entries, entry)
        if len(self._groups) > self._total:
            self._forget_classes()

    def ordered(self) -> list[_Place]:
        """Return the kept samples in drawing order; correct for the first `wanted`."""
        placed = []
        for group, entries in self._groups.items():
            # Where in its step a class begins is chance, too: else no class of one sample was ever drawn early.
            offset = _lot(self._seed, f"class {group}") / 2**64
            for rank, (lot, row, digest) in enumerate(sorted(entries, reverse=True)):
                placed.append(((rank + offset) / self._counts[group], -lot, -row, digest))
        return [_Place(row, digest) for *_, row, digest in sorted(placed)]

    def _forget_classes(self) -> None:
        """Drop the classes if there are more than samples to take: not all can be represented."""
        self._has_classes = False
        self._counts = Counter({None: self._counts.total()})
        every = [entry for entries in self._groups.values() for entry in entries]
        self._groups = {None: heapq.nlargest(self._total, every)}
        heapq.heapify(self._groups[None])


def _sample_bytes(sample: Sample) -> bytes:
    return f"{sample.digest}{sample.label!r}\n".encode()


def _digest_of(sample: Sample) -> bytes:
    """Return a short digest of values and label: with many classes, most are kept until the end."""
    return hashlib.sha256(_sample_bytes(sample)).digest()[:8]


def _class_of(label: Any) -> Any:
    """Return the class that a sample is grouped by: a class id or name; None for anything else."""
    return label if isinstance(label, str | int) else None


def _lot(seed: int, text: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{text}".encode()).digest()[:8])


def _too_few(spec: DataSpec, name: str, available: int, rows: int) -> UsageError:
    repeated = f" ({rows} rows, of which {rows - available} repeat others)" if rows > available else ""
    message = (
        f"data: {name} has {count(available, 'different sample')}{repeated}, and {spec.calibration} for calibration and"
        f" {spec.evaluation} for evaluation are wanted"
    )
    if available == 1:
        return UsageError(message, remedy="give samples that differ: one cannot both calibrate and judge")
    calibration = max(1, min(spec.calibration, available // 3))
    return UsageError(
        message,
        remedy=f"set calibration: {calibration} and evaluation: {min(spec.evaluation, available - calibration)} under"
        " `data`, or give more samples",
    )
