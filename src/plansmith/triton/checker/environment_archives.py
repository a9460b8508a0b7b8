"""What archives with the environments of Python models hold, as far as a short look tells."""

from __future__ import annotations

import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import first_line

READ_ARCHIVES = (".tar.gz", ".tgz", ".tar")

_ACTIVATE = "bin/activate"
_PYTHON = re.compile(r"lib/python(3\.\d+)/")
_MOST_BYTES = 256 << 20
"""Unpacked; environments of several GiB are not read through, which takes minutes."""


@dataclass(frozen=True)
class Packed:
    """What a look told.

    Args:
        problem: what is wrong, in words that follow the name of the archive; empty where nothing is.
        pythons: that it has packages for, such as "3.12"; none where the look ended before.
    """

    problem: str
    pythons: frozenset[str] = frozenset()


def look_into(path: Path) -> Packed:
    """See what an archive holds, up to what is large; a part of it that was not seen is no problem."""
    pythons, is_activated, seen = set[str](), False, 0
    try:
        with tarfile.open(path, "r|*") as archive:
            for entry in archive:
                place = entry.name.removeprefix("./")
                is_activated = is_activated or place == _ACTIVATE
                if (found := _PYTHON.match(f"{place}/")) is not None:
                    pythons.add(found[1])
                seen += entry.size
                if (is_activated and pythons) or seen > _MOST_BYTES:
                    return Packed("", frozenset(pythons))
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        return Packed(f"is no archive that Triton unpacks: {first_line(error)}")
    except OSError as error:
        return Packed(f"cannot be read: {error.strerror or first_line(error)}")
    return Packed("" if is_activated else f"has no {_ACTIVATE}, which Triton runs first", frozenset(pythons))
