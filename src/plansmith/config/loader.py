"""Spec files: one model, or several under `models:` that start from common `defaults:`.

All that is wrong in a file is said at once, each with its line. A spec means the same everywhere, so
environment variables are refused instead of read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from plansmith.config.multi_target import (
    NamedSpec,
    folder_of,
    for_targets,
    repository_of,
    target_problems,
    without_targets,
)
from plansmith.config.pipeline import OLD_MODELS
from plansmith.config.source_reference import Scheme, SourceReference, parse_reference
from plansmith.config.spec import Problem, find_problems, got, make_spec, refusal, unknown_targets
from plansmith.config.target.targets import is_target_file
from plansmith.config.yaml_source import MANY, MODELS, Keys, SpecText, option_for, read_text
from plansmith.errors import SourceError, UsageError

_FOLDERS = ("artifacts", "repository", "tritonserver")

# Keys that are merged instead of replaced, and how many levels deep.
_MERGED = {"shapes": 1, "tolerances": 2, "triton": 1, "data": 2, "lowering": 1, "tensorrt": 1, "pipeline": 1}

# Of these, the command line gives a part only.
_ADDED_TO = ("tensorrt", "pipeline")

# What says where data come from; another place replaces all of it.
_PLACE = {"path", "dataset", "entry_point", "subset", "split"}


@dataclass(frozen=True)
class SpecFile:
    """What a spec file holds.

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
    """The values of one model, defaults included, and the keys that lead to it in the file.

    Args:
        keys: none for the file as a whole.
        values: without a list of targets.
        targets: those of the list, as they were written; None where there was no list.
    """

    keys: Keys
    values: dict[str, Any]
    targets: list[Any] | None = None


def read_specs(path: Path, overrides: Mapping[str, Any], picked: Sequence[str] = ()) -> SpecFile:
    """Read a YAML spec file; `overrides` (from the command line) win over what stands in it.

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
    found = [*text.problems, *(_form_problems(text, overrides) if several else [])]
    for entry in entries:
        found += _entry_problems(entry, overrides, text)
    if found:
        raise refusal(_once([*found, *_unknown_targets(entries, overrides, text)], text), remedy=_remedy(text))
    repeated = list(_repeated_names(entries, text, {}, None))
    if repeated:
        raise refusal(repeated, remedy="give each a `name` of its own")
    mixed = list(_mixed_repositories(entries, text))
    if mixed:
        raise refusal(mixed, remedy="write `target: [NAME]` for it too, or give it a `repository` of its own")
    taken = _pick(entries, picked, path)
    if len(taken) > 1:
        _require_own_names(taken, overrides, typed, text)
    models = [model for entry in taken for model in _models(entry, overrides, typed, path.parent)]
    return SpecFile(tuple(models), several or any(model.target for model in models), tuple(_old_names(entries, path)))


def _old_names(entries: Sequence[_Entry], path: Path) -> Iterator[str]:
    """Keys that are read under their old names."""
    pipelines = [entry.values.get("pipeline") for entry in entries]
    if any(isinstance(pipeline, dict) and OLD_MODELS in pipeline for pipeline in pipelines):
        yield f"{path}: `{OLD_MODELS}` under `pipeline` is called `models` now; the next release reads that alone"


def name_of(values: Mapping[str, Any], folder: Path) -> str:
    """The name that a model has, or gets from its source, there or not; a UsageError where that is no source."""
    name, source = values.get("name"), values.get("source")
    if (isinstance(name, str) and name) or not isinstance(source, str):
        return str(name or "")
    try:
        return parse_reference(source, relative_to=folder).default_name
    except SourceError:  # what is wrong with it is said when the model's turn comes
        scheme, _, location = source.partition(":")
        path = Path(location) if scheme == "onnx" else None
        return SourceReference(cast(Scheme, scheme), location, None, path).default_name


def _models(entry: _Entry, overrides: dict[str, Any], typed: list[Any] | None, folder: Path) -> list[NamedSpec]:
    spec = make_spec(_over(entry.values, overrides))
    named = NamedSpec(spec.name or name_of(entry.values, folder), spec)
    targets = _targets(entry, overrides, typed)
    return [named] if targets is None else for_targets(named, targets)


def _targets(entry: _Entry, overrides: Mapping[str, Any], typed: list[Any] | None) -> list[Any] | None:
    """The targets of a model that each have a repository of their own; those of the command line win."""
    if typed is not None or entry.targets is None:
        return typed
    return [overrides["target"]] if "target" in overrides else entry.targets


def _entries(text: SpecText) -> list[_Entry]:
    """The models of the list that can be looked at, each on top of the defaults."""
    defaults, models = text.values.get("defaults"), text.values.get(MODELS)
    common = _with_folders(defaults, text.path.parent) if isinstance(defaults, dict) else {}
    return [
        _entry((MODELS, str(number)), values, text.path.parent, common)
        for number, values in enumerate(models if isinstance(models, list) else [])
        if isinstance(values, dict)
    ]


def _entry(keys: Keys, values: dict[str, Any], start: Path, common: dict[str, Any] | None = None) -> _Entry:
    """A model's values over the defaults; where these list targets, one that it names alone is a list, too."""
    merged, targets = without_targets(_merged(common or {}, _with_folders(values, start)))
    if targets is None and common and isinstance(common.get("target"), list):
        targets = [merged.pop("target")]
    return _Entry(keys, merged, targets)


def _with_folders(values: dict[str, Any], start: Path) -> dict[str, Any]:
    """The values, with folders and a target file that start from the spec's own folder."""
    named = [key for key in _FOLDERS if isinstance(values.get(key), str) and values[key]]
    found = values | {key: str(start / values[key]) for key in named}
    if "tritonserver" in named:  # a release notes it, and is verified from elsewhere
        found["tritonserver"] = str(Path(found["tritonserver"]).absolute())
    if "target" in values:
        target = values["target"]
        found["target"] = (
            [_beside(start, one) for one in target] if isinstance(target, list) else _beside(start, target)
        )
    return found


def _beside(start: Path, target: Any) -> Any:
    """A target's file lies beside the spec; a name stays one."""
    return str(start / target) if isinstance(target, str) and is_target_file(target) else target


def _over(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a model with those of the command line over them."""
    found = {**values, **overrides}
    if isinstance(values.get("data"), dict) and "data" in overrides:
        found["data"] = _with_place(values["data"], overrides["data"])
    for key in _ADDED_TO:
        if isinstance(values.get(key), dict) and isinstance(overrides.get(key), dict):
            found[key] = values[key] | overrides[key]
    return found


def _with_place(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Data that other data are put over: where those have a place of their own, this one's goes."""
    kept = common if _PLACE.isdisjoint(own) else {key: value for key, value in common.items() if key not in _PLACE}
    merged: dict[str, Any] = _deeply(kept, own, _MERGED["data"])
    return merged


def _merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A model's own values over the defaults; what is a mapping in both is merged key by key."""
    inner = {key: _deeply(common[key], own[key], n) for key, n in _MERGED.items() if key in common and key in own}
    if isinstance(common.get("data"), dict) and isinstance(own.get("data"), dict):
        inner["data"] = _with_place(common["data"], own["data"])
    return common | own | inner


def _deeply(common: Any, own: Any, levels: int) -> Any:
    if not (levels and isinstance(common, dict) and isinstance(own, dict)):
        return own
    return common | {k: _deeply(common[k], value, levels - 1) if k in common else value for k, value in own.items()}


def _form_problems(text: SpecText, overrides: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong around the models: other keys, defaults that are none, a list that is none."""
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
        words = f"'defaults': a mapping of what all models start from {got(defaults)}"
        yield text.placed(Problem(("defaults",), "wrong", words))
    models = text.values.get(MODELS)
    if not isinstance(models, list) or not models:
        words = f"'{MODELS}' is a list of models, each with at least `source` {got(models)}"
        yield text.placed(Problem((MODELS,), "wrong", words))
        return
    for number, values in enumerate(models):
        if not isinstance(values, dict):
            words = f"a model is a mapping with at least `source` {got(values)}"
            yield text.placed(Problem((MODELS, str(number)), "wrong", words))


def _entry_problems(entry: _Entry, overrides: Mapping[str, Any], text: SpecText) -> Iterator[Problem]:
    """What is wrong with one model, but for what is wrong with the defaults alone."""
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
        words = f"'source': {error.message}; {error.remedy}"
        yield text.placed(Problem(("source",), "wrong", words), text.root_of(("source",), (entry.keys, ("defaults",))))


def _unknown_targets(entries: Sequence[_Entry], overrides: Mapping[str, Any], text: SpecText) -> Iterator[Problem]:
    """The targets of models that cannot be loaded: told with the other problems, and not after them."""
    if "target" in overrides:
        yield from unknown_targets(overrides["target"])
        return
    for entry in entries:
        root = text.root_of(("target",), (entry.keys, ("defaults",)))
        for problem in unknown_targets(entry.targets or entry.values.get("target")):
            yield text.placed(problem, root)


def _stands_there(keys: Keys, overrides: Mapping[str, Any], text: SpecText, root: Keys) -> bool:
    """Whether a value of the data is the file's own, and not that of the command line over it."""
    return keys[0] == "data" and len(keys) > 1 and keys[1] not in overrides["data"] and (*root, *keys[:2]) in text.lines


def _once(found: Sequence[Problem], text: SpecText) -> list[Problem]:
    """Each problem once; a value that holds a variable is wrong for that alone."""
    unique = {(p.place, p.words): p for p in found}.values()
    return [p for p in unique if p in text.problems or p.keys not in text.variables]


def _repeated_names(
    entries: Sequence[_Entry], text: SpecText, overrides: Mapping[str, Any], typed: list[Any] | None
) -> Iterator[Problem]:
    """Models that would be versions of one another: the same name in the same repository."""
    first: dict[tuple[str, Path], int] = {}
    for entry in entries:
        values, targets = {**entry.values, **overrides}, _targets(entry, overrides, typed)
        base, line = repository_of(values), text.lines[entry.keys] if entry.keys else 0
        name = name_of(values, text.path.parent)
        keys = [(name, (base / folder_of(one) if one else base).resolve()) for one in (targets or [""])]
        if taken := [key for key in keys if key in first]:
            words = f"the model in line {first[taken[0]]} is called {name!r} too, in the same repository"
            yield text.placed(Problem((), "wrong", words), entry.keys)
        first |= {key: line for key in keys if key not in first}


def _mixed_repositories(entries: Sequence[_Entry], text: SpecText) -> Iterator[Problem]:
    """Models whose repository would hold those of another one's several targets."""
    several = {repository_of(entry.values).resolve(): entry.keys for entry in entries if entry.targets is not None}
    for entry in entries:
        other = several.get(repository_of(entry.values).resolve()) if entry.targets is None else None
        if other is not None:
            words = f"its repository is the folder in which the model in line {text.lines[other]} has one per target"
            yield text.placed(Problem((), "wrong", words), entry.keys)


def _pick(entries: Sequence[_Entry], picked: Sequence[str], path: Path) -> list[_Entry]:
    names = [name_of(entry.values, path.parent) for entry in entries]
    unknown = [name for name in picked if name not in names]
    if unknown:
        raise UsageError(
            f"{path} has no model {', '.join(map(repr, unknown))}", remedy=f"its models are {', '.join(sorted(names))}"
        )
    return [entry for entry, name in zip(entries, names, strict=True) if not picked or name in picked]


def _require_own_names(
    taken: Sequence[_Entry], overrides: Mapping[str, Any], typed: list[Any] | None, text: SpecText
) -> None:
    """See that the command line does not make one model of several."""
    if "name" in overrides:
        raise UsageError(
            f"--name names one model, and {len(taken)} are to be compiled", remedy="add --model NAME to pick one"
        )
    found = list(_repeated_names(taken, text, overrides, typed))
    if found:
        raise refusal(found, remedy="pick models with --model NAME, or leave the repository to the spec")


def _remedy(text: SpecText) -> str:
    """What to do about all problems; the way around a variable is worth its own words."""
    if not text.variables:
        return "mend these and run it again"
    instead = option_for(*next(iter(text.variables.items())))
    way = f", or leave it out and type {instead}" if instead else ""
    return f"a spec means the same everywhere, so write the value itself{way}; {text.way_out}"
