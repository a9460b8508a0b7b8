"""Simulated years of a store: whatever is killed, suspended or late, its promises hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..support.simulation.followers import FollowedYears
from ..support.simulation.years import Years
from ..support.stores.crowds import small_release
from ..support.stores.releases import PackagedRelease

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("PLANSMITH_SOAK_SEEDS") or 100)
FIRST = int(os.environ.get("PLANSMITH_SOAK_FIRST_SEED") or 0)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[PackagedRelease]:
    folder = tmp_path_factory.mktemp("releases")
    return [small_release(folder / str(answer), answer) for answer in range(3)]


@pytest.mark.parametrize("conditional", [True, False], ids=["conditional writes", "turns"])
def test_store_keeps_promises_for_years(conditional: bool, releases: list[PackagedRelease], tmp_path: Path) -> None:
    """A number is given once, what is held is never pruned, readers see whole versions, what was answered stays so."""
    for seed in range(FIRST, FIRST + SEEDS):
        Years(seed, releases, tmp_path, conditional=conditional).run_years()


def test_release_returns_while_it_is_pruned(releases: list[PackagedRelease], tmp_path: Path) -> None:
    """A release that is published again while a pruner removes it is whole in the end."""
    for seed in range(FIRST, FIRST + 2 * SEEDS):
        Years(seed, releases, tmp_path, conditional=True).run_return()


def test_followers_serve_what_aliases_say(releases: list[PackagedRelease], tmp_path: Path) -> None:
    """A follower serves whole versions alone, what it reports is not pruned, and a quiet turn brings it up to date."""
    for seed in range(FIRST, FIRST + 2 * SEEDS):
        FollowedYears(seed, releases, tmp_path, conditional=seed % 2 == 0).run_followed()
