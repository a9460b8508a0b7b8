"""The specs and targets that ship with plansmith work."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.spec_files import read_specs
from plansmith.targets import load_target, target_names

SPECS = sorted((Path(__file__).parents[1] / "configs" / "models").glob("*.yaml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_shipped_spec_is_one_that_compile_takes(path: Path) -> None:
    found = read_specs(path, {})
    assert found.several or found.models[0].name == path.stem
    assert {model.spec.target for model in found.models} <= set(target_names())


def test_there_are_specs_to_start_from() -> None:
    assert {read_specs(path, {}).several for path in SPECS} == {False, True}


@pytest.mark.parametrize("name", target_names())
def test_a_shipped_target_names_its_runtime(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.onnxruntime.count(".") == 2
    assert target.max_opset >= 17
