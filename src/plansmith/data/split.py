"""Which samples are taken, and in which order: by chance, but the same ones for the same data and seed.

Every sample has a lot, a hash of the seed and its own digest, and the lowest lots are taken. So the draw does not
depend on the order of the rows, and a repeated sample has one lot. Where samples have classes, the lots are ranked
class by class, and every stretch of the order holds the classes in the shares that they have in the data.

The data are read twice: the first time for the lots, of which those that may be taken are kept with their rows alone,
the second time, as far as needed, for the samples that were drawn. So no more samples are in memory than were asked
for, however many classes there are. Data that are others the second time are refused.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from plansmith.config.data import DataSpec
from plansmith.data.sample import Sample, changing
from plansmith.errors import SourceError, UsageError


@dataclass(frozen=True)
class Draw:
    """The samples that were drawn.

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
    """Draw the two sets of a spec. A sample whose inputs stood in the data before is left out.

    Args:
        samples: all, in the order of the data; every iteration begins with the first one.
        spec: says how many, and the seed.
        name: of the data, for errors.

    Raises:
        SourceError: there are no samples, or others each time.
        UsageError: there are fewer than the spec wants.
    """
    wanted = spec.calibration + spec.evaluation
    lots = _Lots(spec.seed, wanted)
    seen: set[str] = set()
    everything, rows = hashlib.sha256(), 0
    for sample in samples:
        rows += 1
        everything.update(_told(sample))
        if sample.digest not in seen:
            seen.add(sample.digest)
            lots.add(sample)
    if not seen:
        raise SourceError(f"{name} holds no samples", remedy="give it some, or name other data")
    if len(seen) < wanted:
        raise _too_few(spec, name, len(seen), rows)
    ordered = _read_again(samples, lots.ordered()[:wanted], name)
    return Draw(
        calibration=tuple(ordered[: spec.calibration]),
        evaluation=tuple(ordered[spec.calibration :]),
        available=len(seen),
        rows=rows,
        digest=everything.hexdigest(),
    )


@dataclass(frozen=True)
class _Place:
    """Where a sample stands, and a digest of its values and label."""

    row: int
    digest: bytes


def _read_again(samples: Iterable[Sample], places: Sequence[_Place], name: str) -> list[Sample]:
    """The samples at these places, in their order.

    Raises:
        SourceError: other samples stand there now.
    """
    missing = {place.row: place for place in places}
    found: dict[int, Sample] = {}
    for sample in samples:
        if (place := missing.pop(sample.row, None)) is not None:
            if place.digest != _digest_of(sample):
                raise changing(name)
            found[sample.row] = sample
            if not missing:
                return [found[place.row] for place in places]
    raise changing(name)


class _Lots:
    """The lowest lots of every class so far.

    Args:
        seed: what the lots are made with.
        wanted: how many samples will be taken in all.
    """

    def __init__(self, seed: int, wanted: int) -> None:
        self._seed = seed
        self._wanted = wanted
        self._held: dict[Any, list[tuple[int, int, bytes]]] = {}
        self._counts: Counter[Any] = Counter()
        self._has_classes = True

    def add(self, sample: Sample) -> None:
        group = _class_of(sample.label) if self._has_classes else None
        self._counts[group] += 1
        held = self._held.setdefault(group, [])
        # The heap's first is the highest lot, which goes when a lower one comes.
        entry = (-_lot(self._seed, sample.digest), -sample.row, _digest_of(sample))
        if len(held) < self._wanted:
            heapq.heappush(held, entry)
        else:
            heapq.heappushpop(held, entry)
        if len(self._held) > self._wanted:
            self._forget_classes()

    def ordered(self) -> list[_Place]:
        """What is held, in the order of the draw; right for the first `wanted`."""
        placed = []
        for group, held in self._held.items():
            # Where in its step a class begins is chance, too: else no class of one sample was ever drawn early.
            offset = _lot(self._seed, f"class {group}") / 2**64
            for rank, (lot, row, digest) in enumerate(sorted(held, reverse=True)):
                placed.append(((rank + offset) / self._counts[group], -lot, -row, digest))
        return [_Place(row, digest) for *_, row, digest in sorted(placed)]

    def _forget_classes(self) -> None:
        """More classes than samples to take: they cannot all be represented."""
        self._has_classes = False
        self._counts = Counter({None: self._counts.total()})
        every = [entry for held in self._held.values() for entry in held]
        self._held = {None: heapq.nlargest(self._wanted, every)}
        heapq.heapify(self._held[None])


def _told(sample: Sample) -> bytes:
    return f"{sample.digest}{sample.label!r}\n".encode()


def _digest_of(sample: Sample) -> bytes:
    """Of its values and its label, short: of data with many classes most are held until the end."""
    return hashlib.sha256(_told(sample)).digest()[:8]


def _class_of(label: Any) -> Any:
    """What samples are grouped by: a class id or name; None for all else."""
    return label if isinstance(label, str | int) else None


def _lot(seed: int, text: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{text}".encode()).digest()[:8])


def _too_few(spec: DataSpec, name: str, available: int, rows: int) -> UsageError:
    repeated = f" ({rows} rows, of which {rows - available} repeat others)" if rows > available else ""
    words = (
        f"data: {name} has {available} different sample(s){repeated}, and {spec.calibration} for calibration and"
        f" {spec.evaluation} for evaluation are wanted"
    )
    if available == 1:
        return UsageError(words, remedy="give samples that differ: one cannot both calibrate and judge")
    calibration = max(1, min(spec.calibration, available // 3))
    return UsageError(
        words,
        remedy=f"set calibration: {calibration} and evaluation: {min(spec.evaluation, available - calibration)} under"
        " `data`, or give more samples",
    )
