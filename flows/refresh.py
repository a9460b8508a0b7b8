"""Fleet refresh on a schedule: like `compile_fleet`, but checks the Hub for new revisions.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from plansmith.fleet.members import AS_SPECIFIED, SpecOverrides
from plansmith.flows.compile_fleet import HERE, Seconds
from plansmith.flows.fleet.pool_runs import Dispatch
from plansmith.flows.fleet.run import FleetOrder, run_fleet
from plansmith.flows.prefect_api.api import end_with_serving_process
from plansmith.flows.prefect_api.cancelling import cancel_children, skipped


def run_name() -> str:
    """Return the Prefect name of a run: the paths of its specs."""
    return f"refresh: {', '.join(Path(place).name for place in flow_run.parameters['specs'])}"


@flow(
    name="refresh",
    flow_run_name=run_name,
    persist_result=False,
    result_serializer="json",
    on_cancellation=[cancel_children],
)
def refresh(
    specs: tuple[str, ...],
    overrides: SpecOverrides = AS_SPECIFIED,
    models: tuple[str, ...] = (),
    force: bool = False,
    pools: dict[str, str] = HERE,
    folder: str = ".",
    take_up_seconds: Seconds = 1800,
    longest_seconds: Seconds = 86400,
) -> Any:
    """Refresh: check every source's revision, every target's tools and every data set again, and rebuild what changed.

    The table of the plan says of every model why it is rebuilt, or that nothing changed.

    Args:
        specs: spec files, and folders that hold some.
        overrides: fields of a spec that win over those of every model.
        models: names of the models to take; all where there are none.
        force: build every model anew.
        pools: by target the work pool that builds its models, "" for all other targets; without any, all models are
            built in this run's process, one after another.
        folder: what relative places start from; a relative one is in the working directory of each worker.
        take_up_seconds: how long a model may wait for a work pool that builds nothing.
        longest_seconds: how long a model may take on a work pool once its run has begun.

    Returns:
        A `FleetSummary` as JSON values; the state Failed where a model failed or was refused, and Skipped where
        another run of its deployment does the same.
    """
    end_with_serving_process()
    if (instead := skipped()) is not None:
        return instead
    dispatch = Dispatch(pools, take_up_seconds, longest_seconds)
    return run_fleet(FleetOrder(specs, overrides, models, True, force, folder, dispatch))
