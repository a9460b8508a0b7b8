"""Every message that the tests met, for a person to read in one go: `make messages`.

With `PLANSMITH_MESSAGES` set to a file, the tests note each error there that they meet, as one JSON document a line;
`python -m tests.support.messages <file>` prints them, by exit code, each once.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

from plansmith.errors import PlansmithError

VARIABLE = "PLANSMITH_MESSAGES"

# What differs from one run of the tests to the next: temporary folders, times, ports, digests.
_PASSING = (
    (re.compile(r"(/[\w.-]+)*/pytest-of-\w+(/[\w.-]+)?/"), "/…/"),
    (re.compile(r"/tmp/[\w-]+/"), "/…/"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8000"),
    (re.compile(r"-\d{8}T\d{6}\.\d{6}-"), "-20261120T120000-"),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "<digest>"),
)


def note(error: PlansmithError) -> None:
    """Remember an error, if somebody asked for that."""
    note_text(type(error).__name__, error.exit_code, str(error))


def note_text(kind: str, status: int, text: str) -> None:
    """As `note`, for what a command printed."""
    place = os.environ.get(VARIABLE)
    if place:
        for pattern, plain in _PASSING:
            text = pattern.sub(plain, text)
        with Path(place).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "status": status, "text": text}) + "\n")


def record_errors() -> None:
    """Have every error of this process noted when it is made."""
    make = PlansmithError.__init__

    def noting(self: PlansmithError, *arguments: object, **keywords: object) -> None:
        make(self, *arguments, **keywords)  # type: ignore[arg-type]
        note(self)

    PlansmithError.__init__ = noting  # type: ignore[method-assign]


def main(place: Path) -> None:
    """Print what was noted."""
    by_kind: dict[tuple[int, str], set[str]] = defaultdict(set)
    for line in place.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        by_kind[fields["status"], fields["kind"]].add(fields["text"])
    for (status, kind), texts in sorted(by_kind.items()):
        print(f"\n===== exit code {status}: {kind}, {len(texts)} messages =====\n")
        print("\n\n".join(sorted(texts)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
