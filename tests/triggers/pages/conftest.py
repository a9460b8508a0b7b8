"""One site for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...support.triggers.inboxes import Clock, opened
from .site import Site


@pytest.fixture
def site(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A service without models and deliveries."""
    monkeypatch.chdir(tmp_path)
    with opened(f"sqlite:///{tmp_path}/inbox.db", clock) as inbox:
        yield Site(tmp_path, inbox, clock)
