"""Steps as a list, which a run walks as does a look at what a run would do."""

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
    """How steps are carried out."""

    def __call__(self, step: Step[C, S], context: C, state: S, /) -> S | None:
        """Do a step, and give the state after it."""
        ...


def run_inline(step: Step[C, S], context: C, state: S, /) -> S | None:
    """Do a step in this process, at once."""
    return step.run(context, state)


@dataclass(frozen=True)
class Walked(Generic[S]):
    """How far steps went.

    Attributes:
        state: after the last of them.
        stopped: the step at which a look stopped; empty where there was nothing left to do.
    """

    state: S
    stopped: str = ""


def walk(steps: Sequence[Step[C, S]], context: C, state: S, execute: StepExecutor = run_inline) -> Walked[S]:
    """Carry steps out in their order.

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
