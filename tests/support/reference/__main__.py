"""Write the generated files of docs/: `python -m tests.support.reference`."""

from __future__ import annotations

import shutil

from ..documentation import PAGES
from .pages import generated_files

shutil.rmtree(PAGES / "reference", ignore_errors=True)
for name, text in generated_files().items():
    path = PAGES / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
