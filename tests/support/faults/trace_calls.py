"""Record the calls of a scenario's operation that change the disk.

`python -m tests.support.faults.trace_calls SCENARIO FOLDER`; prints a JSON list of name and path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .disk.boundaries import Boundaries
from .scenarios import SCENARIOS


def main(name: str, folder: Path) -> None:
    """Prepare, record, print."""
    place = folder / "place"
    place.mkdir()
    SCENARIOS[name].prepare(place)
    Boundaries(folder / "trace").arm()
    SCENARIOS[name].act(place)
    sys.stdout.write(json.dumps([line.split(" ", 1) for line in (folder / "trace").read_text().splitlines()]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
