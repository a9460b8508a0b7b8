"""The real parser and builder of TensorRT-RTX, for the tests that are marked for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.tensorrt.rtx import Library


@pytest.fixture(scope="session")
def library() -> Iterator[Library]:
    """One process for them all, started by the first that asks it something."""
    with Library() as library:
        yield library
