"""`plansmith`, killed just before the first call that changes a path of a pattern.

`python -m tests.journeys.killed_command PATTERN WORD…`, with the root of the repository in PYTHONPATH.
"""

from __future__ import annotations

import sys
from pathlib import Path

from plansmith import cli

from ..support.faults.disk.boundaries import Boundaries


def main(pattern: str, words: list[str]) -> None:
    """Run the command up to there."""
    Boundaries(Path.cwd() / "trace", number=1, pattern=pattern).arm()
    sys.argv = ["plansmith", *words]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
