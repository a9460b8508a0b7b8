"""Zoo list: a YAML file of models and their reduced sizes; reports all its problems at once."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from plansmith.config.spec import Problem, problems_of, refusal
from plansmith.config.yaml_source import read_text
from plansmith.errors import UsageError, first_line
from plansmith.records.model import Record

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


def shipped_list() -> Path:
    """Return the list shipped with plansmith."""
    return Path(str(files("plansmith"))) / "configs" / "zoo.yaml"


def read_list(path: Path) -> tuple[ZooEntry, ...]:
    """Read a zoo list.

    Raises:
        UsageError: the file cannot be read or is no such list; names every problem at once.
    """
    text = read_text(path, form="a list of models is a mapping with `models`", examples="configs/zoo.yaml")
    problems = list(text.problems)
    entries: tuple[ZooEntry, ...] = ()
    try:
        entries = ZooList.model_validate(text.values).models
    except ValidationError as invalid:
        problems += map(text.placed, problems_of(invalid, text.values, ZooList))
    first: dict[str, int] = {}
    for place, entry in enumerate(entries):
        if first.setdefault(entry.label, place) != place:
            message = f"{entry.label!r} stands there already; give each a `name`"
            problems.append(text.placed(Problem(("models", str(place)), "wrong", message)))
    if problems:
        raise refusal(problems, subject=str(path))
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
