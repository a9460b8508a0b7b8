"""Worker process of a parallel fleet build: compiles one model as `plansmith compile` does.

Run as `python -m plansmith.fleet.worker <file descriptor>` by `process.Worker`, or forked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.config.spec import ModelSpec
from plansmith.fleet.build import build_fleet
from plansmith.fleet.records import ModelOutcome, PlannedModel
from plansmith.formatting import format_seconds
from plansmith.records.model import Record
from plansmith.records.release import PublishedVersion, StepRecord
from plansmith.steps.compilation import Compilation
from plansmith.steps.runner import Listener, shared_imports
from plansmith.system.process import serve
from plansmith.system.tasks import Progress, Task


class BuildRequest(Record):
    """Request to build a stale model.

    Attributes:
        planned: the model.
        overrides: as the plan was made with.
        quiet: tell nothing of steps.
    """

    planned: PlannedModel
    overrides: dict[str, Any]
    quiet: bool


BUILD = Task("build", BuildRequest, ModelOutcome)


class _Lines(Listener):
    """Tells of steps that wait or have ended, and of what is unusual, a line each."""

    def __init__(self, tell: Progress, *, quiet: bool) -> None:
        self._tell = tell
        self._quiet = quiet

    def waiting(self, step: str, text: str) -> None:
        if not self._quiet:
            self._tell(f"{step}: {text}")

    def finished(self, record: StepRecord) -> None:
        if not self._quiet:
            self._tell(f"{record.name} {'cached' if record.cached else format_seconds(record.seconds)}")

    def notice(self, text: str) -> None:
        self._tell(text)


def build(request: BuildRequest, progress: Progress) -> ModelOutcome:
    """Build a model; its failure is in the outcome."""
    lines = _Lines(progress, quiet=request.quiet)

    def compile_one(spec: ModelSpec, base: Path) -> PublishedVersion:
        with shared_imports(), Compilation(spec, relative_to=base, listener=lines) as compilation:
            return compilation.run()[0]

    return build_fleet([request.planned], compile_one, request.overrides).outcomes[0]


def functions() -> dict[str, Callable[..., Any]]:
    """Return the function that does the task, by its name, for `process.serve`."""
    return dict([BUILD.served_by(build)])


if __name__ == "__main__":
    serve(functions(), int(sys.argv[1]))
