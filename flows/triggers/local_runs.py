"""Compiles that events of registries ask for, in this process: for a service without a Prefect API."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from uuid import NAMESPACE_URL, uuid5

from plansmith.flows.prefect_api.places import rooted
from plansmith.flows.runs.submitting import SubmittedRun
from plansmith.flows.triggers.triggered_runs import Blocked, Order
from plansmith.records.model import Record
from plansmith.records.release import PublishedVersion, StepRecord
from plansmith.steps.compilation import Compilation
from plansmith.steps.runner import Listener
from plansmith.triggers.worker_loop import log_event


class LocalRuns:
    """Compiles in this process, one model at a time, and tells of each step in the log.

    A compile that ends with a killed process goes on after its last finished step when its entry is taken up again;
    what is published already is found and not published twice.
    """

    are_inline = True

    def __init__(self) -> None:
        self._one_at_a_time = Lock()

    def start(
        self,
        order: Order,
        before: Collection[str],  # noqa: ARG002 - what was published before is found by its content
        is_so: Callable[[], bool] | None,
    ) -> SubmittedRun | Blocked | None:
        """Compile what is ordered, and return when it is published; as `TriggeredRuns.start` otherwise.

        Raises:
            PlansmithError: as `Compilation.run`.
        """
        if is_so is not None and not is_so():
            return None
        wanted, base = order.wanted, order.wanted.folder.absolute()
        with self._one_at_a_time:
            listener = _LogListener(wanted.model, wanted.target)
            spec = rooted(wanted.spec, Path(wanted.directory).absolute())
            try:
                with Compilation(spec, relative_to=base, listener=listener) as compilation:
                    published, _ = compilation.run()
            except Exception:
                listener.end("failed")  # why stands in the line of the entry
                raise
            listener.end("unchanged" if published.unchanged else "published", published)
        place = f"{published.repository} version {published.version}"
        return SubmittedRun(uuid5(NAMESPACE_URL, order.key), wanted.model, place)


class _LogListener(Listener):
    """Writes each step of a compile to the log.

    Args:
        model: its name.
        target: that it is compiled for.
    """

    def __init__(self, model: str, target: str) -> None:
        self._fields = {"model": model, "target": target}
        self._started = time.monotonic()
        log_event(logging.INFO, "compile", outcome="started", **self._fields)

    def waiting(self, step: str, text: str) -> None:
        log_event(logging.INFO, "step", step=step, outcome="waiting", reason=text, **self._fields)

    def result(self, record: Record) -> None:
        """Nothing is said of what a step made: `finished` follows."""

    def finished(self, record: StepRecord) -> None:
        said = {"step": record.name, "seconds": record.seconds, "cached": record.cached}
        log_event(logging.INFO, "step", outcome="finished", **said, **self._fields)

    def notice(self, text: str) -> None:
        log_event(logging.WARNING, "notice", reason=text, **self._fields)

    def end(self, outcome: str, published: PublishedVersion | None = None) -> None:
        """The compile ended, with this version where it ended well."""
        fields: dict[str, object] = {"seconds": round(time.monotonic() - self._started, 3), **self._fields}
        if published is not None:
            fields |= {"version": published.version, "repository": str(published.repository)}
        log_event(logging.INFO if published else logging.ERROR, "compile", outcome=outcome, **fields)
