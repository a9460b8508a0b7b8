"""Write the pictures of docs/images/: `python -m tests.support.pictures [NAME…]`."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import browser
from ..documentation import PAGES
from .scenes import SCENES


def main(names: set[str]) -> None:
    """Run the scenes that pictures belong to, each in a folder of its own, and store the pictures."""
    known = {name for scene in SCENES for name in scene.pictures}
    if names - known:
        sys.exit(f"no such picture: {', '.join(sorted(names - known))}; there are {', '.join(sorted(known))}")
    with TemporaryDirectory() as scratch, browser.running(Path(scratch)) as chromium:
        for scene in SCENES:
            if not names or names.intersection(scene.pictures):
                folder = Path(scratch) / scene.run.__name__
                folder.mkdir()
                for name, content in scene.run(folder, chromium):
                    if not names or name in names:
                        (PAGES / "images" / name).write_bytes(content)
                        print(f"docs/images/{name}: {len(content) / 1000:.0f} kB", flush=True)


main(set(sys.argv[1:]))
