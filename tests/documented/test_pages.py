"""No session of the documentation is left out: a page that has one is run by a test."""

from __future__ import annotations

import re
from pathlib import Path

from ..support.documentation import DOCUMENTS, ROOT, code_blocks

RUNNERS = ("documented/test_*.py", "cli/test_guides.py", "journeys/test_minilm.py", "stores/test_documented_session.py")
"""The tests that run sessions."""
BY_SECTION = {"docs/stores.md", "docs/triton.md"}
"""Pages whose sections need different tests, which name them."""


def test_sessions_are_run() -> None:
    """A page with a ```console block is named by a test that runs it, or each of its sections with one is."""
    paths = [path for pattern in RUNNERS for path in (ROOT / "tests").glob(pattern) if path != Path(__file__)]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    missing = []
    for path in DOCUMENTS:
        text, page = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        if page in BY_SECTION:
            sections = re.split(r"^## ", text, flags=re.MULTILINE)
            named = [section.partition("\n")[0] for section in sections if code_blocks(section, "console")]
            missing += [f"{page}: {heading}" for heading in named if f'"{heading}"' not in code]
        elif code_blocks(text, "console") and f'{page}"' not in code and f'"{path.stem}"' not in code:
            missing.append(page)
    assert missing == []
