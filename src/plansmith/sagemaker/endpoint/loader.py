"""Reads the file of an endpoint: every problem at once, each with its line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plansmith.config.spec import Problem, problem_of, refusal
from plansmith.config.yaml_source import SpecText, read_text
from plansmith.sagemaker.endpoint.rules import find_contradictions, make_problem
from plansmith.sagemaker.endpoint.spec import EndpointSpec

_FORM = "an endpoint is a mapping with `name`, `region`, `role`, `bucket` and `variants`"


def read_endpoint(path: Path) -> EndpointSpec:
    """Read the file of an endpoint. Paths in it start from its folder, and are full paths afterwards.

    Raises:
        UsageError: it cannot be read, or has problems; all of them, with their lines.
    """
    text = read_text(path, form=_FORM, examples="docs/sagemaker.md")
    problems = [*text.problems, *map(text.placed, _value_problems(text))]
    if not problems:
        spec = EndpointSpec.model_validate(text.values)
        problems = [
            text.placed(problem) for problem in (*find_contradictions(spec), *_missing_files(spec, path.parent))
        ]
    if problems:
        raise refusal(problems, what=f"the endpoint {path.name}", remedy="correct these and run it again")
    folder = path.absolute().parent
    changes: dict[str, object] = {"repository": str(folder / spec.repository)}
    if spec.smoke_test and spec.smoke_test.body:
        changes["smoke_test"] = spec.smoke_test.model_copy(update={"body": str(folder / spec.smoke_test.body)})
    return spec.model_copy(update=changes)


def _value_problems(text: SpecText) -> list[Problem]:
    try:
        EndpointSpec.model_validate(text.values)
    except ValidationError as invalid:
        return [
            _with_suggestion(problem_of(error, text.values)) for error in invalid.errors() if not _is_repeated(error)
        ]
    return []


def _is_repeated(error: Mapping[str, Any]) -> bool:
    """Whether a list counts as too short only because an invalid item, which has its own error, was left out."""
    return error["type"] == "too_short" and bool(len(error["input"]) >= error["ctx"]["min_length"])


def _missing_files(spec: EndpointSpec, folder: Path) -> Iterator[Problem]:
    if spec.smoke_test and spec.smoke_test.body and not (folder / spec.smoke_test.body).is_file():
        yield make_problem(("smoke_test", "body"), f"there is no file {folder / spec.smoke_test.body}")


def _with_suggestion(problem: Problem) -> Problem:
    """A problem; of an unknown key also its right place, or the known key that is most like it."""
    if problem.kind != "unknown":
        return problem
    key, place = problem.keys[-1], tuple(key for key in problem.keys[:-1] if not key.isdecimal())
    known = dict(_known_keys())
    elsewhere = [parent for parent, names in known.items() if key in names]
    if elsewhere:
        nearest = min(elsewhere, key=len)
        return replace(problem, words=f"{problem.words} (it belongs {_place_text(nearest)})")
    near = difflib.get_close_matches(key, known.get(place, ()), n=1)
    return replace(problem, words=f"{problem.words} (did you mean {near[0]}?)") if near else problem


def _place_text(place: tuple[str, ...]) -> str:
    return f"in {'.'.join(place)}" if place else "at the top of the file"


def _known_keys() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The mappings of a file by the keys that lead to them, without the numbers of rows, and the keys of each."""
    schema = EndpointSpec.model_json_schema()
    pending: list[tuple[tuple[str, ...], dict[str, Any]]] = [((), schema)]
    while pending:
        place, node = pending.pop(0)
        properties = node.get("properties", {})
        if properties:
            yield place, tuple(properties)
        for name, inner in properties.items():
            options = [inner, inner.get("items", {}), *inner.get("anyOf", ())]
            references = (option["$ref"].rpartition("/")[2] for option in options if "$ref" in option)
            pending += [((*place, name), schema["$defs"][reference]) for reference in references]
