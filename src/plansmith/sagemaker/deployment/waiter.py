"""Waits until something in AWS does not change by itself any more, and reports its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from plansmith.errors import EnvironmentFault
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.current import DELETING, TRANSITIONAL

Progress = Callable[[str], None]
"""Takes one line of progress at a time."""

T = TypeVar("T")

_MAX_FAULTS = 5


class StillPendingError(Exception):
    """An endpoint or a job takes longer than the time limit; it goes on by itself.

    Attributes:
        status: its state.
    """

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Polling:
    """How an endpoint or a job is waited for.

    Attributes:
        limit_seconds: how long.
        interval_seconds: the time between two requests.
    """

    limit_seconds: float = 3600
    interval_seconds: float = 15


@dataclass(frozen=True)
class Observation(Generic[T]):
    """What is waited for, at one moment.

    Attributes:
        value: what AWS says of it.
        status: its state.
        line: its progress, for a person.
        is_pending: whether its state ends by itself.
    """

    value: T
    status: str
    line: str
    is_pending: bool


def wait_while_pending(observe: Callable[[], Observation[T]], polling: Polling, progress: Progress) -> T:
    """Wait until something is in a state that does not end by itself.

    Args:
        observe: asks AWS for it.
        polling: how long and how often.
        progress: told what changed.

    Raises:
        StillPendingError: it takes longer than the limit.
        EnvironmentFault: AWS cannot be asked, several times in a row.
    """
    deadline = time.monotonic() + polling.limit_seconds
    faults, line, status = 0, "", "pending"
    while True:
        try:
            observation = observe()
        except EnvironmentFault as error:
            faults += 1
            if not error.transient or faults == _MAX_FAULTS:
                raise
        else:
            faults = 0
            if not observation.is_pending:
                return observation.value
            if observation.line != line:
                progress(observation.line)
            line, status = observation.line, observation.status
        if time.monotonic() >= deadline:
            raise StillPendingError(status)
        time.sleep(polling.interval_seconds)


def wait_for_endpoint(account: Account, endpoint: str, polling: Polling, progress: Progress) -> dict[str, Any] | None:
    """Wait until an endpoint is in a state that does not end by itself.

    Args:
        account: of the endpoint.
        endpoint: its name.
        polling: how long and how often.
        progress: told what changed.

    Returns:
        SageMaker's description of it; None when it is gone.

    Raises:
        StillPendingError, EnvironmentFault: as `wait_while_pending`.
    """

    def observe() -> Observation[dict[str, Any] | None]:
        description = account.find("describe_endpoint", EndpointName=endpoint)
        if description is None:
            return Observation(None, "", "", is_pending=False)
        status = description["EndpointStatus"]
        return Observation(description, status, _progress_line(description), status in (*TRANSITIONAL, DELETING))

    return wait_while_pending(observe, polling, progress)


def _progress_line(description: dict[str, Any]) -> str:
    """The states of an endpoint and its variants: `Updating: main 1 of 2 instances (Creating)`."""
    pending = description.get("PendingDeploymentSummary", {})
    parts = []
    for variant in pending.get("ProductionVariants") or description.get("ProductionVariants", ()):
        current, desired = variant.get("CurrentInstanceCount"), variant.get("DesiredInstanceCount")
        instances = f" {current} of {desired} instances" if None not in (current, desired) else ""
        states = ", ".join(state["Status"] for state in variant.get("VariantStatus", ()))
        parts.append(f"{variant['VariantName']}{instances}{f' ({states})' if states else ''}")
    status = str(description["EndpointStatus"])
    return f"{status}: {'; '.join(parts)}" if parts else status
