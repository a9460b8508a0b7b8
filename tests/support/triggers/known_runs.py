"""A service with rules in a folder of its own, and starts of runs that are kept in mind."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from plansmith.config.service import ServiceConfig
from plansmith.flows.runs.submitting import SubmittedRun
from plansmith.flows.triggers.builder import Blocked, Order
from plansmith.triggers.registries.delivery import Event

MLFLOW: dict[str, Any] = {"type": "mlflow", "tracking_uri": "http://127.0.0.1:5000", "secrets": ["env:SECRET"]}


def service(*rules: dict[str, Any], retries: int = 3, **more: Any) -> ServiceConfig:
    """A service whose rules are about aliases of the registry `mlflow`, unless they say otherwise."""
    whole = [{"registry": "mlflow", "model": "*", "when": "alias"} | rule for rule in rules]
    triggers = {"registries": {"mlflow": MLFLOW}, "rules": whole, "retries": retries}
    return ServiceConfig.model_validate({"specs": ["specs"], "pools": {"first": {}}, "triggers": triggers} | more)


def champion(model: str = "ranker", version: str = "3", *, source: str | None = None) -> Event:
    """A version of a model became the champion."""
    address = f"mlflow:models:/{model}/{version}" if source is None else source
    return Event(registry="mlflow", model=model, version=version, change="alias", value="champion", source=address)


@dataclass
class KnownRuns:
    """In place of a Prefect API: a run for each key.

    `fails`: what asking for a run raises, one after the other. `requests`: each order with the runs before it.
    `meanwhile`: what happens while one is asked for. `goes_on`: a run that has not ended, and that all targets wait for
    that are not `free`.
    """

    fails: list[Exception] = field(default_factory=list)
    requests: list[tuple[Order, frozenset[str]]] = field(default_factory=list)
    ids: dict[str, UUID] = field(default_factory=dict)
    meanwhile: Callable[[], object] = lambda: None
    goes_on: UUID | None = None
    are_inline: bool = False
    free: frozenset[str] = frozenset()

    def start(
        self, order: Order, before: Collection[str], is_so: Callable[[], bool] | None
    ) -> SubmittedRun | Blocked | None:
        self.requests.append((order, frozenset(before)))
        self.meanwhile()
        if self.fails:
            raise self.fails.pop(0)
        if self.goes_on is not None and order.request.target not in self.free:
            return Blocked(SubmittedRun(self.goes_on, "before", f"http://prefect/runs/{self.goes_on}"))
        if is_so is not None and not is_so():
            return None
        run = self.ids.setdefault(order.key, uuid4())
        return SubmittedRun(run, order.request.run_name, f"http://prefect/runs/{run}")
