"""Fleet compilation as a Prefect flow: plans first, then builds stale models here or on work pools.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from plansmith.fleet.members import AS_SPECIFIED, SpecOverrides
from plansmith.flows.fleet.pool_runs import Dispatch
from plansmith.flows.fleet.run import FleetOrder, run_fleet
from plansmith.flows.prefect_api.api import end_with_serving_process
from plansmith.flows.prefect_api.cancelling import cancel_children

Seconds = Annotated[float, Field(gt=0)]

HERE: dict[str, str] = {}


def run_name() -> str:
    """Return the Prefect name of a run: the paths of its specs."""
    return f"fleet: {', '.join(Path(place).name for place in flow_run.parameters['specs'])}"


@flow(
    name="compile-fleet",
    flow_run_name=run_name,
    persist_result=False,
    result_serializer="json",
    on_cancellation=[cancel_children],
)
def compile_fleet(
    specs: tuple[str, ...],
    overrides: SpecOverrides = AS_SPECIFIED,
    models: tuple[str, ...] = (),
    resolve: bool = False,
    force: bool = False,
    pools: dict[str, str] = HERE,
    folder: str = ".",
    take_up_seconds: Seconds = 1800,
    longest_seconds: Seconds = 86400,
) -> Any:
    """Update a fleet of models: build those that are stale.

    Args:
        specs: spec files, and folders that hold some.
        overrides: fields of a spec that win over those of every model.
        models: names of the models to take; all where there are none.
        resolve: ask the hub for the commits of branches, and stores for what they have; what is known here counts
            otherwise.
        force: build every model anew.
        pools: by target the work pool that builds its models, "" for all other targets; without any, all models are
            built in this run's process, one after another.
        folder: what relative places start from; a relative one is in the working directory of each worker.
        take_up_seconds: how long a model may wait for a work pool that builds nothing.
        longest_seconds: how long a model may take on a work pool once its run has begun.

    Returns:
        A `FleetSummary` as JSON values; the state Failed where a model failed or was refused.
    """
    end_with_serving_process()
    dispatch = Dispatch(pools, take_up_seconds, longest_seconds)
    return run_fleet(FleetOrder(specs, overrides, models, resolve, force, folder, dispatch))
