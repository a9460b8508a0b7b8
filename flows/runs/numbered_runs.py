"""Runs of compile-model by what they are for: a key is that of a cause and a number, and the server takes each once.

A key holds no time. So whoever asks twice, or two who ask at the same moment, get one run; and whoever finds that the
newest run of a cause is no answer takes the next number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from plansmith.flows.deploy.deployments import ONE_MODEL, service_tag

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import FlowRun

_GROUP_TAGS = ("model:", "target:", service_tag(""))

PAGE = 200
"""How many runs the server gives at once."""


def numbered(key: str, number: int) -> str:
    """The key of the run of a number, as the server knows it."""
    return f"{key}:{number}"


def number_of(run: FlowRun) -> int:
    """The number of a run that was started with a key of `numbered`."""
    return int(str(run.idempotency_key).rpartition(":")[2])


def newest_of(read: Callable[[list[str]], list[FlowRun]], key: str) -> tuple[int, FlowRun | None]:
    """The run of the highest number that was started for a cause, and the number; a free one where there is none.

    Args:
        read: gives the runs of some keys.
        key: of the cause.
    """
    first = 0
    while len(found := read([numbered(key, number) for number in range(first, first + PAGE)])) == PAGE:
        first += PAGE
    if not found:
        return first, None
    newest = max(found, key=number_of)
    return number_of(newest), newest


def read_keyed(client: SyncPrefectClient, keys: list[str]) -> list[FlowRun]:
    """The runs of compile-model of some keys, of at most `PAGE`."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey

    return read_compiles(client, FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys)))


@dataclass(frozen=True)
class RunGroup:
    """Runs of compile-model that publish the same model for the same target.

    Args:
        tags: all of which they have.
        deployment: that they are of; None where the tags name a service, all of whose runs count.
    """

    tags: tuple[str, ...]
    deployment: UUID | None


def run_group_of(tags: Collection[str], deployment: UUID | None) -> RunGroup:
    """The kin of a run, by its tags and its deployment."""
    own = tuple(tag for tag in tags if tag.startswith(_GROUP_TAGS))
    return RunGroup(own, None if any(tag.startswith(service_tag("")) for tag in own) else deployment)


def read_unfinished(client: SyncPrefectClient, kin: RunGroup) -> list[FlowRun]:
    """Those that have not ended, of at most `PAGE`."""
    from prefect.client.schemas.filters import FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import TERMINAL_STATES

    unfinished = FlowRunFilterState(type=FlowRunFilterStateType(not_any_=sorted(TERMINAL_STATES)))
    return _read_kin(client, kin, state=unfinished)


def read_later(client: SyncPrefectClient, than: FlowRun, kin: RunGroup) -> list[FlowRun]:
    """Those that went well after a run had ended, of at most `PAGE`; none while it goes on."""
    from prefect.client.schemas.filters import FlowRunFilterEndTime, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    if than.end_time is None:
        return []
    well = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED]))
    after = FlowRunFilterEndTime(after_=than.end_time)
    return [run for run in _read_kin(client, kin, state=well, end_time=after) if run.id != than.id]


def _read_kin(client: SyncPrefectClient, kin: RunGroup, **which: Any) -> list[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterTags

    if kin.deployment is not None:
        which["deployment_id"] = FlowRunFilterDeploymentId(any_=[kin.deployment])
    return read_compiles(client, FlowRunFilter(tags=FlowRunFilterTags(all_=list(kin.tags)), **which))


def read_compiles(client: SyncPrefectClient, which: FlowRunFilter) -> list[FlowRun]:
    """Runs of compile-model, at most `PAGE`."""
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    ours = FlowFilter(name=FlowFilterName(any_=[ONE_MODEL]))
    return client.read_flow_runs(flow_filter=ours, flow_run_filter=which, limit=PAGE)
