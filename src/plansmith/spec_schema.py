"""The JSON Schema (draft 2020-12) of spec files, for editors; made of the fields that specs are read with."""

from __future__ import annotations

from typing import Any

from plansmith.config import ModelSpec
from plansmith.spec_text import MODELS, PATHS, VARIABLE
from plansmith.target_names import target_names

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINED = "#/$defs/"
_PARTIAL = "Partial"


def spec_schema() -> dict[str, Any]:
    """The schema of a spec file: one model, or `models` with `defaults`.

    What only reading a spec can tell is left to that: sizes in order, names that are taken twice.
    """
    model = ModelSpec.model_json_schema()
    model["properties"]["target"]["examples"] = target_names()
    definitions = model.pop("$defs") | {"ModelSpec": model}
    for definition in definitions.values():
        _refuse_variables(definition)
    definitions |= _partial(definitions)
    return {
        "$schema": _DIALECT,
        "title": "plansmith spec",
        "description": "One model to compile, or several under `models`.",
        "type": "object",
        "$defs": definitions | {"SpecFile": _file_of_several()},
        # One of two by its keys, and not anyOf: an editor then complains about the form that was meant.
        "if": {"anyOf": [{"required": [MODELS]}, {"required": ["defaults"]}]},
        "then": {"$ref": f"{_DEFINED}SpecFile"},
        "else": {"$ref": f"{_DEFINED}ModelSpec"},
    }


def _file_of_several() -> dict[str, Any]:
    part = {"$ref": f"{_DEFINED}{_PARTIAL}ModelSpec"}
    return {
        "title": "SpecFile",
        "description": "Several models to compile, one after another.",
        "type": "object",
        "properties": {
            "defaults": part | {"description": "What every model starts from; its own values win."},
            MODELS: {
                "type": "array",
                "minItems": 1,
                "items": part,
                "description": "The models, each with the keys of a spec of one model.",
            },
        },
        "required": [MODELS],
        "additionalProperties": False,
        "if": {"required": ["defaults"], "properties": {"defaults": {"required": ["source"]}}},
        "else": {"properties": {MODELS: {"items": {"required": ["source"]}}}},
    }


def _partial(definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions of mappings once more, with nothing required: defaults and models complete each other."""
    mappings = {name for name, definition in definitions.items() if definition["type"] == "object"}

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        name = str(value.get("$ref", "")).removeprefix(_DEFINED)
        own = {"$ref": f"{_DEFINED}{_PARTIAL}{name}"} if name in mappings else {}
        return {key: renamed(item) for key, item in value.items()} | own

    return {
        f"{_PARTIAL}{name}": {key: value for key, value in renamed(definitions[name]).items() if key != "required"}
        for name in sorted(mappings)
    }


def _refuse_variables(definition: dict[str, Any]) -> None:
    """Text takes no environment variables, where $$ is a dollar sign, and a path no ~."""
    for name, field in definition.get("properties", {}).items():
        if field.get("type") == "string":
            home = "^~|" if name in PATHS else ""
            field["not"] = {"pattern": rf"{home}(^|[^$])(\$\$)*{VARIABLE}"}
