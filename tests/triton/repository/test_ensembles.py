"""Configurations of ensembles and scripts tell who asks a model, and what has to be loaded with a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.triton.config.ensemble import put_members
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


def test_script_asks_parameter_models_once(root: Path) -> None:
    """A script asks what its parameter names, each once and in order."""
    assert members_of_script(read_config(root / "again")) == [OTHER, PART]
    assert members_of_script(read_config(root / "ensemble")) == members_of_script(None) == []
    assert steps_of(read_config(root / "top")) == {PART, OTHER}
    assert steps_of(read_config(root / "ensemble")) == {PART}
    assert steps_of(read_config(root / "broken")) == steps_of(read_config(root / "missing")) == set()


def test_configuration_notes_read_from_text() -> None:
    """What is noted in a configuration is read from its text."""
    config = parse_config("")
    put_members(config, [PART, OTHER, PART])
    assert members_of_script(parse_config(text_of(config))) == [PART, OTHER]
    assert all(name in text_of(config) for name in (PART, OTHER))


def test_server_loads_script_last(root: Path) -> None:
    """A server loads each script behind what it asks."""
    assert with_members(root, ["nobody", "top", "again"]) == ["nobody", PART, OTHER, "top", "again"]
    assert with_members(root, ["ensemble", "missing", "broken"]) == ["ensemble", "missing", "broken"]
    assert with_members(root, ["*"]) == ["*"]


def test_part_needed_while_asked(root: Path) -> None:
    """A part is needed for as long as anything asks it."""
    assert askers_of(root / PART) == ["again", "ensemble", "top"]
    assert askers_of(root / OTHER) == ["again", "top"]
    serving = {PART, OTHER, THIRD, "top", "other.a.0123abcd"}
    assert parts_not_needed(root / "top", serving) == [THIRD]
    for name in ("again", "top"):
        (root / name / "config.pbtxt").unlink()
    assert parts_not_needed(root / "top", serving) == [OTHER, THIRD]
