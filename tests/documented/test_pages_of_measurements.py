"""The pages on what is measured of served models: load, comparisons, searches, memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.documented_sessions import follow

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(300)]


@pytest.mark.parametrize("page", ["loadtest", "compare", "tuning"])
def test_page_on_load_runs(page: str, small: Path) -> None:
    """Small models are loaded, compared and tuned."""
    follow(f"docs/{page}.md", small)


def test_capacity_page_runs(minilm: Path) -> None:
    """Copies are loaded until the memory that was named is used, and evicted."""
    follow("docs/capacity.md", minilm)
