"""Parallel fleet builds: several models at a time, each compiled by a process of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plansmith.errors import PlansmithError
from plansmith.fleet.build import outcome_of, outcome_unbuilt, outcome_without_work
from plansmith.fleet.records import FleetSummary, ModelOutcome, PlannedModel, failure_of
from plansmith.fleet.worker import BUILD, BuildRequest
from plansmith.steps.runner import WORKER_LIBRARIES, WORKER_MODULE
from plansmith.system.fork_server import SOCKET_VARIABLE, forked_workers
from plansmith.system.worker_pool import WorkerPool, cores_per_job

MODULE = "plansmith.fleet.worker"
# What a compile itself imports, without what it leaves to its worker.
_LIBRARIES = ("jinja2", "markupsafe", "numpy", "plansmith", "pydantic", "pydantic_core", "rich", "yaml")


def build_in_parallel(
    planned: Sequence[PlannedModel],
    jobs: int,
    overrides: Mapping[str, Any],
    *,
    quiet: bool,
    begins: Callable[[PlannedModel], None],
    tell: Callable[[PlannedModel, str], None],
    ended: Callable[[ModelOutcome], None],
) -> FleetSummary:
    """Build the stale models, several at a time; refused ones count as failed, and unbuilt ones as interrupted.

    The processes share the cores: each computes with as many threads as it has of them. What they import is imported
    once for all.

    Args:
        planned: what `plan_fleet` gave, or a part of it.
        jobs: models at a time.
        overrides: as the plan was made with.
        quiet: tell nothing of steps.
        begins: told of a model before it is built, in any thread, but one at a time.
        tell: told a line about a model that is built, likewise.
        ended: told what came of each model, likewise.
    """
    started = time.monotonic()
    pool, lock, outcomes = WorkerPool(jobs), threading.Lock(), dict[int, ModelOutcome]()

    def build(number: int) -> None:
        model = planned[number]
        if model.state != "stale":
            outcome = outcome_without_work(model)
        else:

            def tell_of_model(text: str) -> None:
                with lock:
                    tell(model, text)

            with lock:
                begins(model)
            request = BuildRequest(planned=model, overrides=dict(overrides), quiet=quiet)
            outcome = _build(request, pool, tell_of_model)
        with lock:
            outcomes[number] = outcome
            ended(outcome)

    # Of the threads that a user sets, no more are used.
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores_per_job(jobs)))}
    with ExitStack() as stack:
        compiles = stack.enter_context(forked_workers(WORKER_MODULE, WORKER_LIBRARIES, environment=threads))
        stack.enter_context(
            forked_workers(MODULE, _LIBRARIES, environment={**threads, SOCKET_VARIABLE: compiles.address})
        )
        try:
            pool.map(build, range(len(planned)))
        except KeyboardInterrupt:
            for number, model in enumerate(planned):
                if number not in outcomes:
                    outcomes[number] = outcome_unbuilt(model)
                    ended(outcomes[number])
    return FleetSummary(
        outcomes=tuple(outcomes[number] for number in range(len(planned))),
        seconds=round(time.monotonic() - started, 3),
    )


def _build(request: BuildRequest, pool: WorkerPool, tell: Callable[[str], None]) -> ModelOutcome:
    started, planned = time.monotonic(), request.planned
    log = Path(planned.artifacts or "artifacts") / "logs" / f"{planned.model}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.log"
    try:
        with pool.open(MODULE, log, tell) as worker:
            outcome = BUILD.run(worker, request)
    except PlansmithError as error:
        if pool.is_interrupted():
            raise CancelledError from error
        return outcome_of(planned, "failed", failure=failure_of(error), seconds=time.monotonic() - started)
    if not log.stat().st_size:
        log.unlink()
    return outcome
