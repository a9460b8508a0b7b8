"""The JSON Schema of spec files says what the loader says, so that an editor finds the mistake first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from plansmith.config import ModelSpec, TritonOptions
from plansmith.spec_files import read_specs
from plansmith.spec_schema import spec_schema
from plansmith.target_names import target_names
from plansmith.types import Tolerance

from .spec_examples import ACCEPTED, REFUSED, RefusedSpec

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "configs" / "models").glob("*.yaml"))


def _complaints(text: str) -> list[str]:
    return [error.message for error in Draft202012Validator(spec_schema()).iter_errors(yaml.safe_load(text))]


def test_the_schema_is_a_schema_and_always_the_same() -> None:
    schema = spec_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema == spec_schema()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_spec_follows_the_schema(path: Path) -> None:
    assert _complaints(path.read_text()) == []


def test_the_specs_of_the_readme_are_taken_and_follow_the_schema(tmp_path: Path) -> None:
    examples = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 3
    for text in examples:
        (tmp_path / "spec.yaml").write_text(text)
        assert read_specs(tmp_path / "spec.yaml", {}).models[0].name in {"minilm", "forecaster"}
        assert _complaints(text) == []


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_the_loader_takes_the_schema_takes(text: str) -> None:
    assert _complaints(text) == []


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_loader_refuses_the_schema_refuses_unless_only_the_loader_can_know(spec: RefusedSpec) -> None:
    try:
        complaints = _complaints(spec.text)
    except yaml.YAMLError as error:
        complaints = [str(error)]
    assert bool(complaints) == spec.by_schema, complaints


@pytest.mark.parametrize("record", [ModelSpec, TritonOptions, Tolerance], ids=lambda record: record.__name__)
def test_every_field_says_what_it_is_for_in_a_sentence(record: type[ModelSpec | TritonOptions | Tolerance]) -> None:
    for name, field in record.model_fields.items():
        assert field.description, name
        assert field.description[0].isupper(), name
        assert field.description.endswith("."), name


def test_every_key_of_a_spec_is_described_where_an_editor_looks() -> None:
    definitions: dict[str, Any] = spec_schema()["$defs"]
    for name in ("ModelSpec", "PartialModelSpec", "SpecFile", "TritonOptions", "PartialTolerance"):
        for key, field in definitions[name]["properties"].items():
            referred = definitions.get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description") or referred["description"], key
    assert set(definitions["ModelSpec"]["properties"]) == set(ModelSpec.model_fields)
    assert definitions["ModelSpec"]["required"] == ["source"]
    assert definitions["ModelSpec"]["properties"]["target"]["examples"] == target_names()
    assert not [name for name in definitions if name.startswith("Partial") and "required" in definitions[name]]
