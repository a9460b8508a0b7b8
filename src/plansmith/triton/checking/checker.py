"""Every rule, held against every model of a repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from plansmith.targets import Target
from plansmith.triton.checking.findings import Finding, Rule
from plansmith.triton.checking.model_folder import ModelFolder, Surroundings


class RuleModule(Protocol):
    """A module of rules.

    `RULES`: all that `check`, and `check_repository` where it has one, may yield findings of.
    """

    RULES: tuple[Rule, ...]

    def check(self, model: ModelFolder, surroundings: Surroundings) -> Iterator[Finding]:
        """What breaks the module's rules in one model."""


class RepositoryRules(Protocol):
    """A module of rules that also hold for a repository as a whole, such as how many models it may have."""

    def check_whole(self, surroundings: Surroundings) -> Iterator[Finding]:
        """What breaks them; once for each check."""


_MODULES: tuple[RuleModule, ...] = ()
_OF_THE_WHOLE: tuple[RepositoryRules, ...] = ()


def all_rules() -> tuple[Rule, ...]:
    """Every rule that a check knows, in the order of the modules."""
    return tuple(rule for module in _MODULES for rule in module.RULES)


def check_repository(
    root: Path,
    *,
    models: Sequence[str] = (),
    target: Target | None = None,
    sagemaker: bool = False,
    arguments: Sequence[str] = (),
) -> list[Finding]:
    """What is wrong in a repository: ours or anybody's; nothing is written, and no model is run.

    Args:
        root: the folder that Triton reads.
        models: those to check; all where none is named.
        target: what it will be served by; what the repository itself says, where it is ours, when None.
        sagemaker: hold it against the rules of SageMaker's front end too.
        arguments: what the server is started with besides.

    Returns:
        Findings in the order of models, places and lines; the worst first of one place.

    Raises:
        RepositoryError: there is no such folder, it is the folder of one model, or it has no such model.
    """
    raise NotImplementedError
