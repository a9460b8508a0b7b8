"""Many processes that publish at once get in each other's way no more than by waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import RunScript

EVERYBODY = list(range(1, 17))


@pytest.mark.slow
def test_sixteen_processes_get_sixteen_numbers_and_a_reader_never_sees_a_broken_view(
    run_script: RunScript, tmp_path: Path
) -> None:
    (found,) = run_script("crowd", "different content", tmp_path, 1)
    assert found["problems"] == []
    assert sorted(found["answers"]) == EVERYBODY
    assert found["versions"] == found["shown"] == EVERYBODY
    assert found["reads"] > 10


def test_sixteen_processes_with_one_content_make_one_version(run_script: RunScript, tmp_path: Path) -> None:
    (found,) = run_script("crowd", "the same content", tmp_path, 1)
    assert found["problems"] == []
    assert found["answers"] == [1] * len(EVERYBODY)
    assert found["versions"] == found["shown"] == [1]


def test_of_two_targets_that_race_for_a_fresh_repository_one_wins_and_the_other_is_told(
    run_script: RunScript, tmp_path: Path
) -> None:
    (found,) = run_script("crowd", "two targets", tmp_path, 1)
    assert found["problems"] == []
    assert found["answers"].count(1) == 1
    (refusal,) = (answer for answer in found["answers"] if answer != 1)
    assert "belongs to target" in refusal
    assert len(found["models"]) == 1
