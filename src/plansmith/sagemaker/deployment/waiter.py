"""Waits until nothing changes an endpoint any more, and reports its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plansmith.errors import EnvironmentFault
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.current import DELETING, TRANSITIONAL

Progress = Callable[[str], None]
"""Takes one line of progress at a time."""

_MAX_FAULTS = 5


class StillPendingError(Exception):
    """An endpoint takes longer than the time limit; it goes on by itself.

    Attributes:
        status: its state.
    """

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Polling:
    """How an endpoint is waited for.

    Attributes:
        limit_seconds: how long.
        interval_seconds: the time between two requests.
    """

    limit_seconds: float = 3600
    interval_seconds: float = 15


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
        StillPendingError: it takes longer than the limit.
        EnvironmentFault: SageMaker cannot be asked, several times in a row.
    """
    deadline = time.monotonic() + polling.limit_seconds
    faults, last, status = 0, "", TRANSITIONAL[0]
    while True:
        try:
            description = account.find("describe_endpoint", EndpointName=endpoint)
        except EnvironmentFault as error:
            faults += 1
            if not error.transient or faults == _MAX_FAULTS:
                raise
        else:
            faults = 0
            if description is None or description["EndpointStatus"] not in (*TRANSITIONAL, DELETING):
                return description
            status, line = description["EndpointStatus"], _progress_line(description)
            if line != last:
                progress(line)
            last = line
        if time.monotonic() >= deadline:
            raise StillPendingError(status)
        time.sleep(polling.interval_seconds)


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
