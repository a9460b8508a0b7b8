"""Configurations of ensembles and scripts tell who asks a model, and what has to be loaded with a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.triton.config.members import put_members
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.repository.ensembles import (
    askers_of,
    members_of_script,
    parts_not_needed,
    read_config,
    steps_of,
    with_members,
)

SCRIPT = 'parameters { key: "plansmith.members" value { string_value: "%s" } }'
ENSEMBLE = 'ensemble_scheduling { step { model_name: "top.a.0123abcd" } }'
PART, OTHER, THIRD = "top.a.0123abcd", "top.b.0123abcd", "top.c.0123abcd"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with an ensemble that asks one part, and scripts that ask two."""
    configs = {
        "ensemble": ENSEMBLE,
        "top": SCRIPT % f"{PART},{OTHER}",
        "nobody": "",
        "broken": f"nonsense {SCRIPT % PART}",
        "again": SCRIPT % f" {OTHER} ,, {OTHER}, {PART}",
    }
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(config)
    return tmp_path


def test_a_script_asks_what_its_parameter_names_each_once_and_in_order(root: Path) -> None:
    assert members_of_script(read_config(root / "again")) == [OTHER, PART]
    assert members_of_script(read_config(root / "ensemble")) == members_of_script(None) == []
    assert steps_of(read_config(root / "top")) == {PART, OTHER}
    assert steps_of(read_config(root / "ensemble")) == {PART}
    assert steps_of(read_config(root / "broken")) == steps_of(read_config(root / "missing")) == set()


def test_what_is_noted_in_a_configuration_is_read_from_its_text() -> None:
    config = parse_config("")
    put_members(config, [PART, OTHER, PART])
    assert members_of_script(parse_config(text_of(config))) == [PART, OTHER]
    assert all(name in text_of(config) for name in (PART, OTHER))


def test_a_server_loads_each_script_behind_what_it_asks(root: Path) -> None:
    assert with_members(root, ["nobody", "top", "again"]) == ["nobody", PART, OTHER, "top", "again"]
    assert with_members(root, ["ensemble", "missing", "broken"]) == ["ensemble", "missing", "broken"]
    assert with_members(root, ["*"]) == ["*"]


def test_a_part_is_needed_for_as_long_as_anything_asks_it(root: Path) -> None:
    assert askers_of(root / PART) == ["again", "ensemble", "top"]
    assert askers_of(root / OTHER) == ["again", "top"]
    serving = {PART, OTHER, THIRD, "top", "other.a.0123abcd"}
    assert parts_not_needed(root / "top", serving) == [THIRD]
    for name in ("again", "top"):
        (root / name / "config.pbtxt").unlink()
    assert parts_not_needed(root / "top", serving) == [OTHER, THIRD]
