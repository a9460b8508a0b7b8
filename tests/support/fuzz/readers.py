"""Every reader that is fuzzed, by name."""

from __future__ import annotations

from .documents import DOCUMENTS
from .files import FILES

READERS = {**FILES, **DOCUMENTS}
