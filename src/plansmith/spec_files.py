"""Spec files: one model, or several under `models:` that start from common `defaults:`.

All that is wrong in a file is said at once, each with its line. A spec means the same everywhere, so
environment variables are refused instead of read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from plansmith.config import ModelSpec, Problem, find_problems, got, make_spec, refusal
from plansmith.errors import SourceError, UsageError
from plansmith.sources.reference import Scheme, SourceReference, parse_reference
from plansmith.spec_text import MANY, MODELS, Keys, SpecText, option_for, read_text
from plansmith.targets import is_target_file

_FOLDERS = ("artifacts", "repository", "tritonserver")

# Keys that are merged instead of replaced, and how many levels deep.
_MERGED = {"shapes": 1, "tolerances": 2, "triton": 1, "data": 2, "lowering": 1, "tensorrt": 1}

# What says where data come from; another place replaces all of it.
_PLACE = {"path", "dataset", "entry_point", "subset", "split"}


@dataclass(frozen=True)
class NamedSpec:
    """A model of a spec file, with the name that it has or that its source gives it."""

    name: str
    spec: ModelSpec


@dataclass(frozen=True)
class SpecFile:
    """What a spec file holds.

    Args:
        models: in the order of the file.
        several: whether the file has the form for several models, however many stand in it.
    """

    models: tuple[NamedSpec, ...]
    several: bool


@dataclass(frozen=True)
class _Entry:
    """The values of one model, defaults included, and the keys that lead to it in the file."""

    keys: Keys
    values: dict[str, Any]


def read_specs(path: Path, overrides: Mapping[str, Any], picked: Sequence[str] = ()) -> SpecFile:
    """Read a YAML spec file; `overrides` (from the command line) win over what stands in it.

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
    entries = _entries(text) if several else [_Entry((), _with_folders(text.values, path.parent))]
    found = [*text.problems, *(_form_problems(text, overrides) if several else [])]
    for entry in entries:
        found += _entry_problems(entry, overrides, text)
    if found:
        raise refusal(_once(found, text), remedy=_remedy(text))
    repeated = list(_repeated_names(entries, text, {}))
    if repeated:
        raise refusal(repeated, remedy="give each a `name` of its own")
    taken = _pick(entries, picked, path)
    if len(taken) > 1:
        _require_own_names(taken, overrides, text)
    specs = [make_spec(_over(entry.values, overrides)) for entry in taken]
    models = tuple(NamedSpec(s.name or _name(e.values, path.parent), s) for e, s in zip(taken, specs, strict=True))
    return SpecFile(models, several)


def _entries(text: SpecText) -> list[_Entry]:
    """The models of the list that can be looked at, each on top of the defaults."""
    defaults, models = text.values.get("defaults"), text.values.get(MODELS)
    common = _with_folders(defaults, text.path.parent) if isinstance(defaults, dict) else {}
    return [
        _Entry((MODELS, str(number)), _merged(common, _with_folders(values, text.path.parent)))
        for number, values in enumerate(models if isinstance(models, list) else [])
        if isinstance(values, dict)
    ]


def _with_folders(values: dict[str, Any], start: Path) -> dict[str, Any]:
    """The values, with folders and a target file that start from the spec's own folder."""
    named = [key for key in _FOLDERS if isinstance(values.get(key), str) and values[key]]
    named += ["target"] if is_target_file(str(values.get("target"))) else []
    return values | {key: str(start / values[key]) for key in named}


def _over(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a model with those of the command line over them."""
    found = {**values, **overrides}
    if isinstance(values.get("data"), dict) and "data" in overrides:
        found["data"] = _with_place(values["data"], overrides["data"])
    if isinstance(values.get("tensorrt"), dict) and "tensorrt" in overrides:
        found["tensorrt"] = values["tensorrt"] | overrides["tensorrt"]
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
        own = find_problems(_with_folders(defaults, text.path.parent))
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
    for problem in find_problems(_over(entry.values, overrides)):
        root = text.root_of(problem.keys, (entry.keys, ("defaults",)))
        if problem.keys and problem.keys[0] in overrides and not _stands_there(problem.keys, overrides, text, root):
            yield problem
        elif root == entry.keys or problem.kind == "missing":
            yield text.placed(problem, root)
    try:
        _name(entry.values, text.path.parent)
    except UsageError as error:
        words = f"'source': {error.message}; {error.remedy}"
        yield text.placed(Problem(("source",), "wrong", words), text.root_of(("source",), (entry.keys, ("defaults",))))


def _stands_there(keys: Keys, overrides: Mapping[str, Any], text: SpecText, root: Keys) -> bool:
    """Whether a value of the data is the file's own, and not that of the command line over it."""
    return keys[0] == "data" and len(keys) > 1 and keys[1] not in overrides["data"] and (*root, *keys[:2]) in text.lines


def _once(found: Sequence[Problem], text: SpecText) -> list[Problem]:
    """Each problem once; a value that holds a variable is wrong for that alone."""
    unique = {(p.place, p.words): p for p in found}.values()
    return [p for p in unique if p in text.problems or p.keys not in text.variables]


def _name(values: Mapping[str, Any], folder: Path) -> str:
    """The name that a model has in its file, or gets from its source."""
    name, source = values.get("name"), values.get("source")
    if (isinstance(name, str) and name) or not isinstance(source, str):
        return str(name or "")
    try:
        return parse_reference(source, relative_to=folder).default_name
    except SourceError:  # what is wrong with it is said when the model's turn comes
        scheme, _, location = source.partition(":")
        path = Path(location) if scheme == "onnx" else None
        return SourceReference(cast(Scheme, scheme), location, None, path).default_name


def _repeated_names(entries: Sequence[_Entry], text: SpecText, overrides: Mapping[str, Any]) -> Iterator[Problem]:
    """Models that would be versions of one another: the same name in the same repository."""
    first: dict[tuple[str, Path], int] = {}
    for entry in entries:
        values = {**entry.values, **overrides}
        repository = values.get("repository") or Path(str(values.get("artifacts", "artifacts"))) / "repository"
        key = (_name(values, text.path.parent), Path(str(repository)).resolve())
        line = text.lines[entry.keys] if entry.keys else 0
        if key in first:
            words = f"the model in line {first[key]} is called {key[0]!r} too, in the same repository"
            yield text.placed(Problem((), "wrong", words), entry.keys)
        first.setdefault(key, line)


def _pick(entries: Sequence[_Entry], picked: Sequence[str], path: Path) -> list[_Entry]:
    names = [_name(entry.values, path.parent) for entry in entries]
    unknown = [name for name in picked if name not in names]
    if unknown:
        raise UsageError(
            f"{path} has no model {', '.join(map(repr, unknown))}", remedy=f"its models are {', '.join(sorted(names))}"
        )
    return [entry for entry, name in zip(entries, names, strict=True) if not picked or name in picked]


def _require_own_names(taken: Sequence[_Entry], overrides: Mapping[str, Any], text: SpecText) -> None:
    """See that the command line does not make one model of several."""
    if "name" in overrides:
        raise UsageError(
            f"--name names one model, and {len(taken)} are to be compiled", remedy="add --model NAME to pick one"
        )
    found = list(_repeated_names(taken, text, overrides))
    if found:
        raise refusal(found, remedy="pick models with --model NAME, or leave the repository to the spec")


def _remedy(text: SpecText) -> str:
    """What to do about all problems; the way around a variable is worth its own words."""
    if not text.variables:
        return "mend these and run it again"
    instead = option_for(*next(iter(text.variables.items())))
    way = f", or leave it out and type {instead}" if instead else ""
    return f"a spec means the same everywhere, so write the value itself{way}; {text.way_out}"
