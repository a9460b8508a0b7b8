"""Which of the places of the fixture `place` a test is run in."""

from __future__ import annotations

import pytest

IN_A_FOLDER = pytest.mark.parametrize("place", ["folder"], indirect=True)
"""For a test of what does not hang on where a store is."""
