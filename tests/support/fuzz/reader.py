"""Fuzz target: a reader of the product, with inputs to start from, and mutations of them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import PlansmithError

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Reader:
    """Fuzz target.

    Attributes:
        read: calls the product with bytes and an empty folder of its own.
        seeds: makes the inputs that mutations start from; the first is accepted.
        tokens: parts of the format that are put in as they are.
        hostile: inputs that are tried as they are: made to do harm, or once answered wrongly.
        refusals: what it may raise.
        count: how many mutations a test has time for.
    """

    read: Callable[[bytes, Path], object]
    seeds: Callable[[], Sequence[bytes]]
    tokens: tuple[bytes, ...] = ()
    hostile: Callable[[], Sequence[bytes]] = tuple
    refusals: tuple[type[Exception], ...] = (PlansmithError,)
    count: int = 100

    def attempt(self, data: bytes) -> bool:
        """Read bytes; whether they were accepted. What the reader may not raise passes."""
        with tempfile.TemporaryDirectory(prefix="plansmith-fuzz-") as folder:
            try:
                self.read(data, Path(folder))
            except self.refusals:
                return False
        return True

    def mutations(self, seed: int) -> Iterator[bytes]:
        """Yield changed seeds: the same ones for the same number."""
        chance, seeds = random.Random(seed), self.seeds()
        for number in range(self.count):
            data = bytearray(seeds[number % len(seeds)])
            for _ in range(chance.randint(1, 4)):
                _change(chance, data, seeds, self.tokens)
            yield bytes(data)


def _change(chance: random.Random, data: bytearray, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    """Change bytes in one of the ways of a fuzzer."""
    place = chance.randint(0, len(data))
    end = min(len(data), place + chance.randint(1, 32))
    match chance.randrange(7 if tokens else 6):
        case 0:
            data[place:end] = chance.randbytes(end - place)
        case 1:
            del data[place:end]
        case 2:
            data[place:place] = data[place:end] * chance.choice((1, 2, 300))
        case 3:
            del data[place:]
        case 4:
            number, width = chance.choice(_NUMBERS), chance.choice((1, 2, 4, 8))
            content = (number % (1 << 8 * width)).to_bytes(width, "little")
            data[place : place + width] = content if chance.random() < 0.5 else content[::-1]
        case 5:
            other = chance.choice(seeds)
            begin = chance.randint(0, len(other))
            data[place:end] = other[begin : begin + chance.randint(1, 256)]
        case _:
            data[place : chance.choice((place, end))] = chance.choice(tokens)
