"""The page on the keys of a spec, from its JSON Schema."""

from __future__ import annotations

import json
from typing import Any

from plansmith.config.loader import spec_schema

from .markdown import page, prose, table

_LONGEST_DEFAULT = 40
Schema = dict[str, Any]


def spec_pages() -> dict[str, str]:
    """The pages by their path in docs/: all but `triton`, and `triton`."""
    definitions = spec_schema()["$defs"]
    triton = _reachable("TritonOptions", "triton", definitions)
    titles = {**_reachable("ModelSpec", "A model", definitions), "SpecFile": "Several models"}
    links = {name: f"{'triton-options.md' * (name in triton)}#{_anchor(title)}" for name, title in titles.items()}
    spec = page(
        "Keys of a spec",
        "`plansmith schema` prints the same as a JSON Schema, for editors; a key that is not listed here is refused."
        " A file holds the keys of one model, or several models under `models`.",
        *(_section(titles[name], definitions[name], links, definitions) for name in titles if name not in triton),
    )
    options = page(
        "Triton options",
        "What the key `triton` of a spec takes. The names are those of Triton's model configuration; the options are"
        " merged over the configuration that plansmith derives from the model.",
        *(_section(titles[name], definitions[name], links, definitions) for name in triton),
    )
    return {"reference/spec.md": spec, "reference/triton-options.md": options}


def _anchor(title: str) -> str:
    return title.lower().replace(".", "").replace(" ", "-")


def _reachable(name: str, title: str, definitions: Schema) -> dict[str, str]:
    """The titles of a definition and of all objects that it leads to: the keys that lead there first."""
    titles: dict[str, str] = {}
    waiting = [(name, title)]
    while waiting:
        name, path = waiting.pop(0)
        if name not in titles and "properties" in definitions[name]:
            titles[name] = path
            above = "" if name == "ModelSpec" else f"{path}."
            for key, schema in definitions[name]["properties"].items():
                waiting += [(link, above + key) for link in _links(schema)]
    return titles


def _links(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [link for item in schema for link in _links(item)]
    if not isinstance(schema, dict):
        return []
    here = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
    return here + [link for key, item in schema.items() if key != "default" for link in _links(item)]


def _section(title: str, definition: Schema, links: dict[str, str], definitions: Schema) -> str:
    required = definition.get("required", ())
    rows = []
    for key, schema in definition["properties"].items():
        default = "required" if key in required else _default(schema, definitions)
        rows.append((f"`{key}`", _type(schema, links, definitions), default, prose(schema.get("description", ""))))
    head = f"## {title}\n\n{prose(definition.get('description', ''))}"
    return f"{head}\n\n{table(('key', 'takes', 'default', 'what it is'), rows)}"


def _default(schema: Schema, definitions: Schema) -> str:
    value = schema.get("default")
    if value in (None, "", {}, []):
        return ""
    text = _written(value)
    is_section = any("properties" in definitions.get(link, {}) for link in _links(schema))
    return "" if is_section or len(text) > _LONGEST_DEFAULT else f"`{text}`"


def _written(value: Any) -> str:
    """A value as it stands in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def _type(schema: Schema, links: dict[str, str], definitions: Schema) -> str:
    """What a key takes, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        definition = definitions[name]
        return f"[mapping]({links[name]})" if name in links else _type(definition, links, definitions)
    if "anyOf" in schema or "oneOf" in schema:
        choices = [_type(item, links, definitions) for item in schema.get("anyOf") or schema["oneOf"]]
        return " or ".join(dict.fromkeys(choice for choice in choices if choice != "null"))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{_written(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}), links, definitions)}"
    if kind == "object":
        return f"{_type(schema.get('additionalProperties') or {}, links, definitions)} by name"
    return {"string": "text", "boolean": "true or false"}.get(kind, str(kind)) + _range(schema)


def _range(schema: Schema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return f", {' and '.join(limits)}" if limits else ""
