"""Spec files: one model, or several under `models:` that share `defaults:`.

All that is wrong in a file is said at once, each with its line. A spec means the same everywhere, so
environment variables are refused instead of read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from plansmith.config.pipeline import OLD_MODELS
from plansmith.config.source_reference import FILE_SUFFIXES, Scheme, SourceReference, parse_reference
from plansmith.config.spec import (
    ModelSpec,
    NamedSpec,
    Problem,
    find_problems,
    folder_of,
    for_targets,
    got,
    make_spec,
    refusal,
    repository_of,
    target_problems,
    unknown_targets,
    without_targets,
)
from plansmith.config.target_names import target_names
from plansmith.config.targets import is_target_file
from plansmith.config.yaml_source import FILES, MANY, MODELS, PATHS, VARIABLE, Keys, SpecText, option_for, read_text
from plansmith.errors import SourceError, UsageError
from plansmith.formatting import suggest_names
from plansmith.records.destination import PLACE_PATTERN

_FOLDERS = ("artifacts", "repository", "tritonserver")

# Keys that are merged instead of replaced, and how many levels deep.
_MERGED = {"shapes": 1, "tolerances": 2, "triton": 1, "data": 2, "lowering": 1, "tensorrt": 1, "pipeline": 1}

# Of these, the command line gives a part only.
_ADDED_TO = ("tensorrt", "pipeline")

# What says where data come from; another place replaces all of it.
_PLACE = {"path", "dataset", "entry_point", "subset", "split"}

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINED = "#/$defs/"
_PART = "PartialModelSpec"


@dataclass(frozen=True)
class SpecFile:
    """Contents of a spec file.

    Args:
        models: in the order of the file.
        several: whether the file has the form for several models or targets, however many stand in it.
        notices: what a person should know of the file, a line each.
    """

    models: tuple[NamedSpec, ...]
    several: bool
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Entry:
    """Model entry: the values of one model, defaults included, and its key path in the file.

    Args:
        keys: none for the file as a whole.
        values: without a list of targets.
        targets: those of the list, as they were written; None where there was no list.
    """

    keys: Keys
    values: dict[str, Any]
    targets: list[Any] | None = None


def read_specs(path: Path, overrides: Mapping[str, Any], picked: Sequence[str] = ()) -> SpecFile:
    """Read a YAML spec file; `overrides` (from the command line) take precedence over its values.

    A list of targets, in the file or of the command line, makes a model for each, in `<repository>/<target>`: a
    repository belongs to one target.

    Paths in a spec are relative to the spec's own place. Data of the command line replace the place of the spec's data,
    and leave columns, counts and measure to the spec.

    Args:
        path: the file.
        overrides: values for every model that is taken.
        picked: names of the models to take; all where there are none.

    Raises:
        UsageError: the file cannot be read, lists every problem with its line, has no model of a picked
            name, or `overrides` give several models one name.
    """
    text = read_text(path)
    several = not MANY.isdisjoint(text.values)
    entries = _entries(text) if several else [_entry((), text.values, path.parent)]
    overrides, typed = without_targets(overrides)
    faults = [*text.problems, *(_form_problems(text, overrides) if several else [])]
    for entry in entries:
        faults += _entry_problems(entry, overrides, text)
    if faults:
        raise refusal(_once([*faults, *_unknown_targets(entries, overrides, text)], text), remedy=_remedy(text))
    repeated = list(_repeated_names(entries, text, {}, None))
    if repeated:
        raise refusal(repeated, remedy="give each a `name` of its own")
    mixed = list(_mixed_repositories(entries, text))
    if mixed:
        raise refusal(mixed, remedy="write `target: [NAME]` for it too, or give it a `repository` of its own")
    selection = _pick(entries, picked, path)
    if len(selection) > 1:
        _require_own_names(selection, overrides, typed, text)
    models = [model for entry in selection for model in _models(entry, overrides, typed, path.parent)]
    return SpecFile(tuple(models), several or any(model.target for model in models), tuple(_old_names(entries, path)))


def _old_names(entries: Sequence[_Entry], path: Path) -> Iterator[str]:
    """Rename keys that are accepted under their former names."""
    pipelines = [entry.values.get("pipeline") for entry in entries]
    if any(isinstance(pipeline, dict) and OLD_MODELS in pipeline for pipeline in pipelines):
        yield f"{path}: `{OLD_MODELS}` under `pipeline` is called `models` now; the next release reads that alone"


def name_of(values: Mapping[str, Any], folder: Path) -> str:
    """Return a model's name, set or derived from its source, which need not exist; UsageError for an invalid source."""
    name, source = values.get("name"), values.get("source")
    if (isinstance(name, str) and name) or not isinstance(source, str):
        return str(name or "")
    try:
        return parse_reference(source, relative_to=folder).default_name
    except SourceError:  # what is wrong with it is said when the model's turn comes
        scheme, _, location = source.partition(":")
        path = Path(location) if scheme in FILE_SUFFIXES else None
        return SourceReference(cast(Scheme, scheme), location, None, path).default_name


def _models(entry: _Entry, overrides: dict[str, Any], typed: list[Any] | None, folder: Path) -> list[NamedSpec]:
    spec = make_spec(_over(entry.values, overrides))
    named = NamedSpec(spec.name or name_of(entry.values, folder), spec)
    targets = _targets(entry, overrides, typed)
    return [named] if targets is None else for_targets(named, targets)


def _targets(entry: _Entry, overrides: Mapping[str, Any], typed: list[Any] | None) -> list[Any] | None:
    """Return the targets of a model with one repository each; those of the command line take precedence."""
    if typed is not None or entry.targets is None:
        return typed
    return [overrides["target"]] if "target" in overrides else entry.targets


def _entries(text: SpecText) -> list[_Entry]:
    """Yield the valid model entries of the list, each merged over the defaults."""
    defaults, models = text.values.get("defaults"), text.values.get(MODELS)
    common = _with_folders(defaults, text.path.parent) if isinstance(defaults, dict) else {}
    return [
        _entry((MODELS, str(number)), values, text.path.parent, common)
        for number, values in enumerate(models if isinstance(models, list) else [])
        if isinstance(values, dict)
    ]


def _entry(keys: Keys, values: dict[str, Any], start: Path, common: dict[str, Any] | None = None) -> _Entry:
    """Return a model's values merged over the defaults; if these list targets, a single target becomes a list."""
    merged, targets = without_targets(_merged(common or {}, _with_folders(values, start)))
    if targets is None and common and isinstance(common.get("target"), list):
        targets = [merged.pop("target")]
    return _Entry(keys, merged, targets)


def _with_folders(values: dict[str, Any], start: Path) -> dict[str, Any]:
    """Return the values with folders and a target file resolved relative to the spec's folder."""
    named = [key for key in _FOLDERS if isinstance(values.get(key), str) and values[key]]
    result = values | {key: str(start / values[key]) for key in named}
    if "tritonserver" in named:  # a release notes it, and is verified from elsewhere
        result["tritonserver"] = str(Path(result["tritonserver"]).absolute())
    if "target" in values:
        target = values["target"]
        result["target"] = (
            [_resolve_target(start, entry) for entry in target]
            if isinstance(target, list)
            else _resolve_target(start, target)
        )
    return result


def _resolve_target(start: Path, target: Any) -> Any:
    """Resolve a target file relative to the spec; a target name is kept."""
    return str(start / target) if isinstance(target, str) and is_target_file(target) else target


def _over(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's values overridden by those of the command line."""
    result = {**values, **overrides}
    if isinstance(values.get("data"), dict) and "data" in overrides:
        result["data"] = _with_place(values["data"], overrides["data"])
    for key in _ADDED_TO:
        if isinstance(values.get(key), dict) and isinstance(overrides.get(key), dict):
            result[key] = values[key] | overrides[key]
    return result


def _with_place(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return base data to merge into; its location is dropped if the overriding data have their own."""
    base = common if _PLACE.isdisjoint(own) else {key: value for key, value in common.items() if key not in _PLACE}
    merged: dict[str, Any] = _deeply(base, own, _MERGED["data"])
    return merged


def _merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merge a model's values over the defaults; mappings in both are merged key by key."""
    inner = {key: _deeply(common[key], own[key], n) for key, n in _MERGED.items() if key in common and key in own}
    if isinstance(common.get("data"), dict) and isinstance(own.get("data"), dict):
        inner["data"] = _with_place(common["data"], own["data"])
    return common | own | inner


def _deeply(common: Any, own: Any, levels: int) -> Any:
    if not (levels and isinstance(common, dict) and isinstance(own, dict)):
        return own
    return common | {k: _deeply(common[k], value, levels - 1) if k in common else value for k, value in own.items()}


def _form_problems(text: SpecText, overrides: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems of the file around its models: unknown keys, invalid defaults, an invalid list."""
    for key in text.values.keys() - MANY:
        yield text.placed(Problem((str(key),), "unknown", repr(str(key))))
    defaults = text.values.get("defaults", {})
    if isinstance(defaults, dict):
        values, targets = without_targets(_with_folders(defaults, text.path.parent))
        own = [*find_problems(values), *(target_problems(targets) if targets is not None else [])]
        # What is missing may stand in the models, and what fields mean together is judged there.
        own = [p for p in own if p.keys and p.keys[0] not in overrides and p.kind != "missing"]
        yield from (text.placed(problem, ("defaults",)) for problem in own)
    else:
        message = f"'defaults': a mapping of what all models start from {got(defaults)}"
        yield text.placed(Problem(("defaults",), "wrong", message))
    models = text.values.get(MODELS)
    if not isinstance(models, list) or not models:
        message = f"'{MODELS}' is a list of models, each with at least `source` {got(models)}"
        yield text.placed(Problem((MODELS,), "wrong", message))
        return
    for number, values in enumerate(models):
        if not isinstance(values, dict):
            message = f"a model is a mapping with at least `source` {got(values)}"
            yield text.placed(Problem((MODELS, str(number)), "wrong", message))


def _entry_problems(entry: _Entry, overrides: Mapping[str, Any], text: SpecText) -> Iterator[Problem]:
    """Yield problems of one model, except those of the defaults alone."""
    listed = target_problems(entry.targets) if entry.targets is not None and "target" not in overrides else ()
    for problem in [*find_problems(_over(entry.values, overrides)), *listed]:
        root = text.root_of(problem.keys, (entry.keys, ("defaults",)))
        if problem.keys and problem.keys[0] in overrides and not _stands_there(problem.keys, overrides, text, root):
            yield problem
        elif root == entry.keys or problem.kind == "missing":
            yield text.placed(problem, root)
    try:
        name_of(entry.values, text.path.parent)
    except UsageError as error:
        explanation = f"'source': {error.message}; {error.remedy}"
        yield text.placed(
            Problem(("source",), "wrong", explanation), text.root_of(("source",), (entry.keys, ("defaults",)))
        )


def _unknown_targets(entries: Sequence[_Entry], overrides: Mapping[str, Any], text: SpecText) -> Iterator[Problem]:
    """Yield the targets of models that cannot be loaded, so that they are reported with the other problems."""
    if "target" in overrides:
        yield from unknown_targets(overrides["target"])
        return
    for entry in entries:
        root = text.root_of(("target",), (entry.keys, ("defaults",)))
        for problem in unknown_targets(entry.targets or entry.values.get("target")):
            yield text.placed(problem, root)


def _stands_there(keys: Keys, overrides: Mapping[str, Any], text: SpecText, root: Keys) -> bool:
    """Whether a value comes from the file itself rather than a command-line override."""
    return keys[0] == "data" and len(keys) > 1 and keys[1] not in overrides["data"] and (*root, *keys[:2]) in text.lines


def _once(all_problems: Sequence[Problem], text: SpecText) -> list[Problem]:
    """Return each problem once; for a value that holds a variable, only that is reported."""
    unique = {(p.place, p.message): p for p in all_problems}.values()
    return [p for p in unique if p in text.problems or p.keys not in text.variables]


def _repeated_names(
    entries: Sequence[_Entry], text: SpecText, overrides: Mapping[str, Any], typed: list[Any] | None
) -> Iterator[Problem]:
    """Yield models that would be versions of one another: same name in the same repository."""
    first: dict[tuple[str, Path], int] = {}
    for entry in entries:
        values, targets = {**entry.values, **overrides}, _targets(entry, overrides, typed)
        base, line = repository_of(values), text.lines[entry.keys] if entry.keys else 0
        name = name_of(values, text.path.parent)
        keys = [(name, (base / folder_of(target) if target else base).resolve()) for target in (targets or [""])]
        if repeats := [key for key in keys if key in first]:
            message = f"the model in line {first[repeats[0]]} is called {name!r} too, in the same repository"
            yield text.placed(Problem((), "wrong", message), entry.keys)
        first |= {key: line for key in keys if key not in first}


def _mixed_repositories(entries: Sequence[_Entry], text: SpecText) -> Iterator[Problem]:
    """Yield models whose repository would contain those of another model's several targets."""
    several = {repository_of(entry.values).resolve(): entry.keys for entry in entries if entry.targets is not None}
    for entry in entries:
        first = several.get(repository_of(entry.values).resolve()) if entry.targets is None else None
        if first is not None:
            message = f"its repository is the folder in which the model in line {text.lines[first]} has one per target"
            yield text.placed(Problem((), "wrong", message), entry.keys)


def _pick(entries: Sequence[_Entry], picked: Sequence[str], path: Path) -> list[_Entry]:
    names = [name_of(entry.values, path.parent) for entry in entries]
    unknown = [name for name in picked if name not in names]
    if unknown:
        raise UsageError(
            f"{path} has no model {', '.join(map(repr, unknown))}",
            remedy=suggest_names(unknown, names, otherwise="add it to the file"),
        )
    return [entry for entry, name in zip(entries, names, strict=True) if not picked or name in picked]


def _require_own_names(
    selection: Sequence[_Entry], overrides: Mapping[str, Any], typed: list[Any] | None, text: SpecText
) -> None:
    """Check that the command line does not turn several models into one."""
    if "name" in overrides:
        raise UsageError(
            f"--name names one model, and {len(selection)} are to be compiled", remedy="add --model NAME to pick one"
        )
    problems = list(_repeated_names(selection, text, overrides, typed))
    if problems:
        raise refusal(problems, remedy="pick models with --model NAME, or leave the repository to the spec")


def _remedy(text: SpecText) -> str:
    """Return the remedy where variables of the environment are part of the problems; empty if none is."""
    if not text.variables:
        return ""
    instead = option_for(*next(iter(text.variables.items())))
    way = f", or leave it out and type {instead}" if instead else ""
    return f"a spec means the same everywhere, so write the value itself{way}; {text.way_out}"


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec file: one model, or `models` with `defaults`.

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
    """Refuse environment variables in text, where $$ is a dollar sign, and ~ in a path."""
    paths = {keys[-1] for keys in PATHS} | FILES
    for name, field in definition.get("properties", {}).items():
        if field.get("type") == "string":
            field["not"] = _refused(is_path=name in paths)


def _refused(*, is_path: bool) -> dict[str, str]:
    home = "^~|" if is_path else ""
    return {"pattern": rf"{home}(^|[^$])(\$\$)*{VARIABLE}"}


def _take_several(field: dict[str, Any]) -> None:
    """Extend a schema field to text or a list of distinct ones, each with the model in its own repository."""
    alone = {key: field.pop(key) for key in ("type", "not")}
    field["anyOf"] = [alone, {"type": "array", "items": alone, "minItems": 1, "uniqueItems": True}]


def _take_places(field: dict[str, Any]) -> None:
    """Extend a schema field to one destination or a list, each in full or as its location alone."""
    several = {key: field.pop(key) for key in ("type", "items", "uniqueItems")}
    alternatives = [_place(), several["items"]]
    field["anyOf"] = [*alternatives, several | {"items": {"anyOf": alternatives}}]


def _place() -> dict[str, Any]:
    return {"type": "string", "pattern": PLACE_PATTERN, "not": _refused(is_path=True)}
