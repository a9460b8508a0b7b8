"""A folder of specs for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.fleet import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty folder of specs."""
    return Place(tmp_path)
