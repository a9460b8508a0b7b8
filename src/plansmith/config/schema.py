"""The JSON Schema (draft 2020-12) of spec files, for editors; made of the fields that specs are read with."""

from __future__ import annotations

from typing import Any

from plansmith.config.spec import ModelSpec
from plansmith.config.target.names import target_names
from plansmith.config.yaml_source import FILES, MODELS, PATHS, VARIABLE
from plansmith.records.destination import PLACE_PATTERN

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINED = "#/$defs/"
_PART = "PartialModelSpec"


def spec_schema() -> dict[str, Any]:
    """The schema of a spec file: one model, or `models` with `defaults`.

    What only reading a spec can tell is left to that: sizes in order, names that are taken twice.
    """
    model = ModelSpec.model_json_schema()
    model["properties"]["target"]["examples"] = target_names()
    definitions = model.pop("$defs") | {"ModelSpec": model}
    for definition in definitions.values():
        _refuse_variables(definition)
    _take_several(model["properties"]["target"])
    _take_places(model["properties"]["publish"])
    model["properties"]["shared_cache"]["anyOf"].insert(0, _place())
    # Defaults and models complete each other; of all keys, a source alone has to be there.
    definitions[_PART] = {key: value for key, value in model.items() if key != "required"}
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
    part = {"$ref": f"{_DEFINED}{_PART}"}
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


def _refuse_variables(definition: dict[str, Any]) -> None:
    """Text takes no environment variables, where $$ is a dollar sign, and a path no ~."""
    paths = {keys[-1] for keys in PATHS} | FILES
    for name, field in definition.get("properties", {}).items():
        if field.get("type") == "string":
            field["not"] = _refused(is_path=name in paths)


def _refused(*, is_path: bool) -> dict[str, str]:
    home = "^~|" if is_path else ""
    return {"pattern": rf"{home}(^|[^$])(\$\$)*{VARIABLE}"}


def _take_several(field: dict[str, Any]) -> None:
    """Text, or a list of different ones, each with the model in a repository of its own."""
    alone = {key: field.pop(key) for key in ("type", "not")}
    field["anyOf"] = [alone, {"type": "array", "items": alone, "minItems": 1, "uniqueItems": True}]


def _take_places(field: dict[str, Any]) -> None:
    """A destination, or a list of them, each in full or as the place alone."""
    several = {key: field.pop(key) for key in ("type", "items", "uniqueItems")}
    one = [_place(), several["items"]]
    field["anyOf"] = [*one, several | {"items": {"anyOf": one}}]


def _place() -> dict[str, Any]:
    return {"type": "string", "pattern": PLACE_PATTERN, "not": _refused(is_path=True)}
