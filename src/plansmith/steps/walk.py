"""Step list, traversed alike by a run and by a dry run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

C = TypeVar("C")
S = TypeVar("S")


def _always(_context: Any, _state: Any) -> bool:
    return True


def _no_check(_context: Any, _state: Any) -> None:
    pass


@dataclass(frozen=True)
class Step(Generic[C, S]):
    """One step of a compile.

    Attributes:
        name: of the step.
        run: makes the next state; None where it only looks, and something would have to be done.
        is_needed: whether the step is part of this compile.
        check: refuses what the steps before have made certain to fail, with an error that is located.
    """

    name: str
    run: Callable[[C, S], S | None]
    is_needed: Callable[[C, S], bool] = _always
    check: Callable[[C, S], None] = _no_check


class StepExecutor(Protocol):
    """Step executor: the protocol for running steps."""

    def __call__(self, step: Step[C, S], context: C, state: S, /) -> S | None:
        """Run a step and return the next state."""
        ...


def run_inline(step: Step[C, S], context: C, state: S, /) -> S | None:
    """Run a step immediately in this process."""
    return step.run(context, state)


@dataclass(frozen=True)
class Walked(Generic[S]):
    """Result of a walk: the last state, and the step at which it stopped.

    Attributes:
        state: after the last of them.
        stopped: the step at which a look stopped; empty where there was nothing left to do.
    """

    state: S
    stopped: str = ""


def walk(steps: Sequence[Step[C, S]], context: C, state: S, execute: StepExecutor = run_inline) -> Walked[S]:
    """Run steps in order.

    Args:
        steps: of one model, or of a release.
        context: what they share.
        state: before the first of them.
        execute: carries each step out.

    Raises:
        PlansmithError: located at the step that failed.
    """
    for step in steps:
        step.check(context, state)
        if not step.is_needed(context, state):
            continue
        after = execute(step, context, state)
        if after is None:
            return Walked(state, step.name)
        state = after
    return Walked(state)
