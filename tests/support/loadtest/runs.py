"""Load tests of small HTTP servers, whose payloads need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from plansmith.loadtest.payloads.encoding import write_payloads
from plansmith.loadtest.results import LoadReport
from plansmith.loadtest.runner.load_runner import Progress, run_load
from plansmith.loadtest.runner.processes import RemoteWorkers
from plansmith.loadtest.stages import LoadPlan, Stage
from plansmith.loadtest.target import LoadTarget, TargetModel
from plansmith.triton.client.messages import Request, WireTensor

SAMPLES = 2
"""In each request."""


def target_at(place: str, folder: Path, models: Sequence[str] = ("tiny",)) -> LoadTarget:
    """A target with models, each NAME or NAME=WEIGHT."""
    targets = []
    for text in models:
        name, _, weight = text.partition("=")
        array = np.zeros((SAMPLES, 3), np.float32)
        request = Request(name, "", [WireTensor("x", "float32", array.shape, array)], [])
        write_payloads(folder / f"payloads-{name}", [request], "http", "binary", is_batched=True)
        targets.append(TargetModel(model=name, payloads=str(folder / f"payloads-{name}"), weight=float(weight or 1)))
    return LoadTarget(place=place, models=tuple(targets))


def run(
    folder: Path,
    place: str,
    *stages: Stage,
    models: Sequence[str] = ("tiny",),
    progress: Callable[[Progress], None] = lambda _: None,
    workers: RemoteWorkers | None = None,
    **settings: object,
) -> LoadReport:
    """Run stages after a short warm-up."""
    warm_up = Stage(users=1, seconds=0.3)
    plan = LoadPlan.model_validate({"stages": stages, "warm_up": warm_up, **settings})
    target = target_at(place, folder, models)
    return run_load(target, plan, folder=folder / "logs", workers=workers, progress=progress)
