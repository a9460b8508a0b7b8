"""YAML text of a spec file: its values, the line of every key, and syntax problems found before validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from plansmith.config.messages import yaml_message
from plansmith.config.spec import ModelSpec, Problem
from plansmith.config.triton import FILE_FOLDERS
from plansmith.config.yaml_loading import require_bounded
from plansmith.errors import UsageError

Keys = tuple[str, ...]
"""The keys and list places that lead to a value, from the outside in."""

MODELS = "models"
MANY = {MODELS, "defaults"}

# As shells read them: $NAME and ${NAME}; $$ is a dollar sign.
VARIABLE = r"\$(?:\{[^}]*\}?|[A-Za-z_][A-Za-z0-9_]*)"

PATHS = {
    *(("repository",), ("artifacts",), ("tritonserver",), ("target",), ("data", "path")),
    *(("publish",), ("publish", "to"), ("publish", "ca_bundle")),
    *(("shared_cache",), ("shared_cache", "to"), ("shared_cache", "ca_bundle")),
}
"""Keys of a model whose values are paths."""

FILES = frozenset(FILE_FOLDERS)
"""Keys somewhere below `triton` whose values are paths."""

_FAST = getattr(yaml, "CSafeLoader", None)
_NESTING = "[{-:?"
"""Every level of a YAML document takes at least one of these."""
_MOST_LEVELS = 1000

_TEXT = "tag:yaml.org,2002:str"
_HOME = re.compile(r"^((?:hf|timm|onnx):)?~")

_NO_OPTION = {
    *("inputs", "io_dtypes", "io_layouts", "lowering", "outputs", "python", "source_override", "tensorrt"),
    *("tolerances", "triton"),
}


@dataclass
class SpecText:
    """Parsed text of a spec file.

    Args:
        path: of the file.
        values: of its mapping, with $$ read as $.
        lines: the line, from 1, of every key and list item.
        variables: what a shell reads in the values, environment variables and ~, as it has to be typed there.
        way_out: how to write what looks like the first of them and is not meant so.
        problems: keys that stand twice, and what only a shell reads.
    """

    path: Path
    values: dict[str, Any]
    lines: dict[Keys, int] = field(default_factory=dict)
    variables: dict[Keys, str] = field(default_factory=dict)
    way_out: str = ""
    problems: list[Problem] = field(default_factory=list)

    def placed(self, problem: Problem, root: Keys = ()) -> Problem:
        """Return a value's problem with its location: the line of its innermost existing key below a root."""
        keys = (*root, *problem.keys)
        line = next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), 0)
        return replace(problem, keys=keys, place=f"{self.path}:{line}" if line else str(self.path), line=line)

    def root_of(self, keys: Keys, roots: Sequence[Keys]) -> Keys:
        """Return the root that contains a key or the longest part of its path; the first on a tie."""

        def depth(root: Keys) -> int:
            return max((n for n in range(len(keys) + 1) if (*root, *keys[:n]) in self.lines), default=-1)

        return max(roots, key=depth)


def read_text(
    path: Path, *, form: str = "a spec is a mapping with at least `source`", examples: str = "configs/models"
) -> SpecText:
    """Read a spec file, or another file of the same form.

    Args:
        path: of the YAML file.
        form: what such a file is, for one that is no mapping.
        examples: where some of them lie.

    Raises:
        UsageError: it cannot be read, is not YAML, or is no mapping.
    """
    try:
        source, values = _read(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", remedy="name a YAML file that is there") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {yaml_message(error)}", remedy="mend the file") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply", remedy="mend the file") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: {form}", remedy=f"see {examples} for examples")
    source.values |= values
    return source


def _read(path: Path, text: str) -> tuple[SpecText, Any]:
    """Read a spec file and its value; libyaml, if available, takes a tenth of the time.

    That one goes down nested values until its stack is full, takes tabs where PyYAML takes none, and says in other
    words what is wrong: a file with the first two, and one that it refuses, is read by PyYAML.
    """
    if _FAST is not None and "\t" not in text and sum(map(text.count, _NESTING)) < _MOST_LEVELS:
        with suppress(yaml.YAMLError):
            return _loaded(_FAST, path, text)
    return _loaded(yaml.SafeLoader, path, text)


def _loaded(kind: Callable[[str], Any], path: Path, text: str) -> tuple[SpecText, Any]:
    source, loader = SpecText(path, {}), kind(text)
    tree = loader.get_single_node()
    require_bounded(tree)
    _walk(tree, (), source, set())
    return source, loader.construct_document(tree) if tree is not None else None


def option_for(keys: Keys, value: str) -> str:
    """Return the command line option that replaces a value; empty if there is none."""
    keys = _of_value(keys)
    if keys == ("source",):
        return f'plansmith compile "{value}"'
    if keys in {("data",), ("data", "path")}:
        return f'--data "{value}"'
    for place in ("publish", "shared_cache"):
        if keys in {(place,), (place, "to")}:
            return f'--{place.replace("_", "-")} "{value}"'
    if not keys or keys[0] not in ModelSpec.model_fields or keys[0] in {*_NO_OPTION, "data", "publish", "shared_cache"}:
        return ""
    option, written = f"--{keys[0].replace('_', '-')}", "=".join([*keys[1:], value])
    is_switch = ModelSpec.model_fields[keys[0]].annotation is bool
    return option if is_switch else f'{option} "{written}"'


def _within_model(keys: Keys) -> Keys:
    """Return the key path of a value relative to its model, or to the defaults."""
    outside = {MODELS: 2, "defaults": 1}.get(keys[0], 0) if keys else 0
    return keys[outside:]


def _of_value(keys: Keys) -> Keys:
    """Like `_within_model`; for a list of targets or destinations, the key path within one item."""
    inner = _within_model(keys)
    if inner[:1] == ("publish",):
        return tuple(key for key in inner if not key.isdecimal())
    return inner[:1] if inner[:1] == ("target",) else inner


def _path(keys: Keys) -> str:
    return repr(".".join(_within_model(keys) or keys))


def _walk(node: yaml.Node | None, keys: Keys, source: SpecText, visited: set[int]) -> None:
    """Record lines, repeated keys and variables, and unescape $$ to $; aliased nodes are visited once."""
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        _look_for_variables(node, keys, source)
        _look_for_home(node, keys, source)
        node.value = node.value.replace("$$", "$")
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            source.lines[*keys, str(number)] = item.start_mark.line + 1
            _walk(item, (*keys, str(number)), source, visited)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _walk(key, (*keys, str(key.value)), source, visited)
            inner, line = (*keys, str(key.value)), key.start_mark.line + 1
            if inner in source.lines:
                message = f"{_path(inner)} stands twice, first in line {source.lines[inner]}"
                source.problems.append(Problem(inner, "wrong", message, f"{source.path}:{line}", line))
            source.lines.setdefault(inner, line)
            _walk(value, inner, source, visited)


def _look_for_variables(node: yaml.ScalarNode, keys: Keys, source: SpecText) -> None:
    names = re.findall(VARIABLE, node.value.replace("$$", ""))
    if names:
        line = node.start_mark.line + 1
        message = f"{_path(keys)} holds the environment variable {', '.join(names)}"
        source.variables.setdefault(keys, node.value)
        source.way_out = source.way_out or "$$ stands for a dollar sign"
        source.problems.append(Problem(keys, "wrong", message, f"{source.path}:{line}", line))


def _look_for_home(node: yaml.ScalarNode, keys: Keys, source: SpecText) -> None:
    """Record a path that begins in a home folder."""
    inner = _of_value(keys)
    begin = _HOME.match(node.value)
    if node.tag != _TEXT or begin is None or bool(begin[1]) != (inner == ("source",)):
        return
    if inner not in {*PATHS, ("source",)} and not (inner[:1] == ("triton",) and inner[-1] in FILES):
        return
    line = node.start_mark.line + 1
    message = f"{_path(keys)} begins with ~, which is another folder for every user"
    source.variables.setdefault(keys, _HOME.sub(r"\1$HOME", node.value))
    source.way_out = source.way_out or "./~ stands for a file or folder whose own name begins with ~"
    source.problems.append(Problem(keys, "wrong", message, f"{source.path}:{line}", line))
