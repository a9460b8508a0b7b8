"""One model for several targets: a list of them makes a model for each, in a repository of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plansmith.config.spec import ModelSpec, Problem, got, refusal
from plansmith.config.target.targets import is_target_file


@dataclass(frozen=True)
class NamedSpec:
    """A model of a spec file, with the name that it has or that its source gives it.

    Args:
        name: of the model.
        spec: for one target.
        target: what the target was called where a list of them was given; such a model is there once for each.
    """

    name: str
    spec: ModelSpec
    target: str = ""

    @property
    def label(self) -> str:
        """What tells it from the others of its file."""
        return f"{self.name} for {self.target}" if self.target else self.name


def without_targets(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any] | None]:
    """Values without a list of targets, and the list; None where there is none."""
    targets = values.get("target")
    if not isinstance(targets, list):
        return dict(values), None
    return {key: value for key, value in values.items() if key != "target"}, targets


def for_targets(named: NamedSpec, targets: Sequence[str]) -> list[NamedSpec]:
    """The same model for each of several targets, each in a repository of its own, and stores of its own.

    Raises:
        UsageError: the list is empty, two of them would have one repository, or servers are to load the model.
    """
    problems = list(target_problems(list(targets)))
    if named.spec.load_into and len(targets) > 1:
        words = "'load_into': a server reads the repository of one target, and here are several: compile one at a time"
        problems.append(Problem(("load_into",), "wrong", words))
    if problems:
        raise refusal(problems)
    base = repository_of(named.spec.model_dump())
    return [
        replace(
            named,
            spec=named.spec.model_copy(
                update={
                    "target": target,
                    "repository": str(base / folder_of(target)),
                    "publish": tuple(one.within(folder_of(target)) for one in named.spec.publish),
                }
            ),
            target=folder_of(target),
        )
        for target in targets
    ]


def folder_of(target: str) -> str:
    """The folder of a target's repository: its name, or that of its file."""
    return Path(target).stem if is_target_file(target) else target


def target_problems(targets: Sequence[Any]) -> Iterator[Problem]:
    """What is wrong with a list of targets; whether there are such is said when the turn of each comes."""
    if not targets:
        yield Problem(("target",), "wrong", "'target': a list names at least one (got [])")
    for number, target in enumerate(targets):
        if not isinstance(target, str) or not target:
            yield Problem(("target", str(number)), "wrong", f"'target': must be text {got(target)}")
        elif folder_of(target) in [folder_of(one) for one in targets[:number] if isinstance(one, str)]:
            yield Problem(("target", str(number)), "wrong", f"'target' names {folder_of(target)!r} more than once")


def repository_of(values: Mapping[str, Any]) -> Path:
    """The repository of a model; of several targets, the folder of their repositories."""
    return Path(str(values.get("repository") or Path(str(values.get("artifacts", "artifacts"))) / "repository"))
