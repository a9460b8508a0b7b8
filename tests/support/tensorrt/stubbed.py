"""A pytest plugin: the process's `tensorrt` is the real bindings of one version, and a GPU is made up for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .bindings import VARIABLE, load

if TYPE_CHECKING:
    from .made_up import MadeUp

load(Path(os.environ[VARIABLE]))
sys.modules["torch"] = None  # type: ignore[assignment] # Polygraphy would take seconds to look whether an array is of it


@pytest.fixture
def gpu() -> Iterator[MadeUp]:
    """Fakes in place of all that needs a GPU."""
    from .made_up import MadeUp

    fakes = MadeUp()
    with fakes.installed():
        yield fakes
