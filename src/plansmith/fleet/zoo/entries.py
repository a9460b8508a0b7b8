"""Zoo list: a YAML file of models and their reduced sizes; reports all its problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from plansmith.config.messages import validation_message, yaml_message
from plansmith.errors import UsageError, first_line
from plansmith.formatting import count
from plansmith.records.model import Record

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_MOST_PROBLEMS = 10

Scheme = Literal["hf", "timm"]


class ZooEntry(Record):
    """Zoo entry: a timm model by name, or a transformers model by its configuration type and class.

    `name`: what the table calls it; made from the rest when left out.
    `timm`: a name that timm knows.
    `model_type`: what `model_type` says in a config.json.
    `architecture`: the model's class, as in `architectures` of a config.json.
    `task`: the head, by the name of a transformers pipeline; decides the class where no architecture is given.
    `config`: what makes the configuration of that type small; nested configurations are mappings.
    """

    name: str = ""
    timm: str = ""
    model_type: str = ""
    architecture: str = ""
    task: str = ""
    config: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.timm) == bool(self.model_type):
            raise ValueError("an entry has either `timm` or `model_type`")
        if self.timm and (self.architecture or self.config):
            raise ValueError("a timm model has its own configuration: leave `architecture` and `config` out")
        if self.model_type and not (self.architecture or self.task):
            raise ValueError("a transformers model needs its `architecture`, or a `task` that decides it")
        return self

    @property
    def scheme(self) -> Scheme:
        """The library of the model."""
        return "timm" if self.timm else "hf"

    @property
    def label(self) -> str:
        """The label in the table."""
        if self.name:
            return self.name
        parts = (self.timm and f"timm:{self.timm}", self.model_type, self.architecture, self.task)
        return " ".join(part for part in parts if part)


class ZooList(Record):
    """Zoo file: its models in order, and parts shared through YAML anchors."""

    parts: dict[str, Any] = Field(default_factory=dict)
    models: tuple[ZooEntry, ...]

    @field_validator("models")
    @classmethod
    def _check_models(cls, value: tuple[ZooEntry, ...]) -> tuple[ZooEntry, ...]:
        if not value:
            raise ValueError("the list is empty")
        return value


def shipped_list() -> Traversable:
    """Return the list shipped with plansmith."""
    return files("plansmith") / "configs" / "zoo.yaml"


def read_list(path: Path | Traversable) -> tuple[ZooEntry, ...]:
    """Read a zoo list.

    Raises:
        UsageError: the file cannot be read or is no such list; names every problem at once.
    """
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}",
            remedy="name a YAML list of models, or none for the one that plansmith comes with",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {yaml_message(error)}", remedy="mend the file") from error
    try:
        entries = ZooList.model_validate(values).models
    except ValidationError as invalid:
        raise _refusal(path, [_problem(error) for error in invalid.errors()]) from invalid
    names = Counter(entry.label for entry in entries)
    repeated = [
        f"{name!r} stands there {count} times; give each a `name`" for name, count in names.items() if count > 1
    ]
    if repeated:
        raise _refusal(path, repeated)
    return entries


def pick(entries: tuple[ZooEntry, ...], pattern: str) -> tuple[ZooEntry, ...]:
    """Select the entries whose names match a regular expression anywhere.

    Raises:
        UsageError: it is no regular expression, or nothing matches.
    """
    import re

    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--only: {pattern!r} is no regular expression: {first_line(error)}", remedy="write --only 'bert|^timm:'"
        ) from error
    matches = tuple(entry for entry in entries if regex.search(entry.label))
    if not matches:
        near = ", ".join(entry.label for entry in entries[:4])
        raise UsageError(f"--only: no name holds a match of {pattern!r}", remedy=f"names are like {near}")
    return matches


def _refusal(path: Path | Traversable, problems: list[str]) -> UsageError:
    more = len(problems) - _MOST_PROBLEMS
    shown = problems[:_MOST_PROBLEMS] + ([f"… and {more} more"] if more > 0 else [])
    return UsageError(
        "\n  ".join([f"{count(len(problems), 'problem')} in {path}:", *shown]), remedy="mend these and run it again"
    )


def _problem(error: Mapping[str, Any]) -> str:
    place = ".".join(map(str, error["loc"]))
    description = {"missing": "is missing", "extra_forbidden": "is unknown"}.get(error["type"]) or validation_message(
        error
    )
    return f"{place}: {description}" if place else description
