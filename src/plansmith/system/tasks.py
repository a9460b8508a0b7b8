"""Tasks of worker processes: the request and the response of each are records, which mypy holds both sides to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plansmith.records.model import Record

if TYPE_CHECKING:
    from plansmith.system.process import Worker

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)

Progress = Callable[[str], None]


class Nothing(Record):
    """A request or response without content."""


@dataclass(frozen=True)
class Task(Generic[Q, R]):
    """One thing that a worker can do. A request and its response cross as JSON.

    Attributes:
        name: of the function.
        request: type of the request.
        response: type of the response.
    """

    name: str
    request: type[Q]
    response: type[R]

    def run(self, worker: Worker, request: Q) -> R:
        """Have a worker do it.

        Raises:
            PlansmithError: the worker's own error, or what is known about its death.
        """
        answer = worker.call(self.name, request=request.model_dump(mode="json"))
        return self.response.model_validate(answer)

    def served_by(self, function: Callable[[Q, Progress], R]) -> tuple[str, Callable[..., Any]]:
        """Return the name of the task with the function that does it, JSON in and out, for `process.serve`."""

        def call(*, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
            return function(self.request.model_validate(request), progress).model_dump(mode="json")

        return self.name, call
