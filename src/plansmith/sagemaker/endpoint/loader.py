"""Endpoint file loader: reports every problem at once, each with its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plansmith.config.messages import KnownKeys
from plansmith.config.spec import Problem, problem_of, refusal, with_suggestion
from plansmith.config.yaml_source import SpecText, read_text
from plansmith.errors import UsageError
from plansmith.sagemaker.endpoint.spec import EndpointSpec, find_contradictions, find_unknown_region, make_problem

_SUFFIXES = {".yaml", ".yml"}
_FORM = "an endpoint is a mapping with `name`, `region`, `role`, `bucket` and `variants`"


def endpoint_files(places: Iterable[Path]) -> list[Path]:
    """Return the endpoint files: the named ones, and those of each folder by file name.

    Raises:
        UsageError: there is no such place, or a folder holds none.
    """
    files: list[Path] = []
    for place in places:
        inside = sorted(path for path in place.iterdir() if path.suffix in _SUFFIXES) if place.is_dir() else [place]
        if not inside or not place.exists():
            raise UsageError(
                f"{place} holds no file of an endpoint" if place.is_dir() else f"there is no file {place}",
                remedy="name a file such as endpoint.yaml, or a folder that holds some",
            )
        files += inside
    return files


def read_endpoint(path: Path) -> EndpointSpec:
    """Read an endpoint file. Relative paths in it start from its folder, and are made absolute.

    Raises:
        UsageError: it cannot be read, or has problems; all of them, with their lines.
    """
    text = read_text(path, form=_FORM, examples="docs/sagemaker.md")
    value_problems = _value_problems(text)
    if not (text.problems or value_problems):
        spec = EndpointSpec.model_validate(text.values)
        value_problems = [*find_contradictions(spec), *_missing_files(spec, path.parent)]
    problems = [*text.problems, *map(text.placed, (*find_unknown_region(text.values), *value_problems))]
    if problems:
        raise refusal(problems, subject=f"the endpoint {path.name}")
    folder = path.absolute().parent
    changes: dict[str, object] = {"repository": str(folder / spec.repository)}
    if spec.smoke_test and spec.smoke_test.body:
        changes["smoke_test"] = spec.smoke_test.model_copy(update={"body": str(folder / spec.smoke_test.body)})
    if spec.recommendation_job:
        payload = tuple(str(folder / file) for file in spec.recommendation_job.payload)
        changes["recommendation_job"] = spec.recommendation_job.model_copy(update={"payload": payload})
    return spec.model_copy(update=changes)


def _value_problems(text: SpecText) -> list[Problem]:
    try:
        EndpointSpec.model_validate(text.values)
    except ValidationError as invalid:
        problems = [problem_of(error, text.values) for error in invalid.errors() if not _is_repeated(error)]
        known = KnownKeys(EndpointSpec.model_json_schema())
        misspelled = {known.nearest(problem.keys) for problem in problems if problem.kind == "unknown"}
        return [
            with_suggestion(problem, known)
            for problem in problems
            if not (problem.kind == "missing" and problem.keys in misspelled)
        ]
    return []


def _is_repeated(error: Mapping[str, Any]) -> bool:
    """Whether a list is reported as too short only because an invalid item, with its own error, was left out."""
    return error["type"] == "too_short" and bool(len(error["input"]) >= error["ctx"]["min_length"])


def _missing_files(spec: EndpointSpec, folder: Path) -> Iterator[Problem]:
    files = [(("smoke_test", "body"), spec.smoke_test.body)] if spec.smoke_test and spec.smoke_test.body else []
    if spec.recommendation_job:
        files += [(("recommendation_job", "payload"), file) for file in spec.recommendation_job.payload]
    for keys, file in files:
        if not (folder / file).is_file():
            yield make_problem(keys, f"there is no file {folder / file}")
