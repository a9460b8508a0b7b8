"""Garbage collection as a Prefect flow.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from plansmith.errors import PlansmithError
from plansmith.fleet.maintenance.collect import CollectionScope, Grace, collected_counts, collected_rows
from plansmith.fleet.maintenance.collect import collect as collected_in
from plansmith.fleet.maintenance.garbage import RemovedItem
from plansmith.fleet.maintenance.locations import named_places, places_of, places_of_specs
from plansmith.fleet.members import AS_SPECIFIED, SpecOverrides
from plansmith.flows.prefect_api.api import end_with_serving_process
from plansmith.flows.prefect_api.cancelling import skipped
from plansmith.flows.prefect_api.run_log import RunLog
from plansmith.formatting import format_bytes, seconds_from_age
from plansmith.records.destination import Location


def run_name() -> str:
    """Return the Prefect name of a run."""
    return f"collect: {'a look alone' if flow_run.parameters['dry_run'] else flow_run.parameters['older_than']}"


@flow(name="collect", flow_run_name=run_name, persist_result=False, result_serializer="json")
def collect(
    specs: tuple[str, ...] = (),
    overrides: SpecOverrides = AS_SPECIFIED,
    artifacts: str = "",
    repositories: list[str] | None = None,
    stores: list[str | Location] | None = None,
    shared_caches: list[str | Location] | None = None,
    older_than: Annotated[str, Field(pattern=r"^\d{1,6}[smhdw]?$")] = "30d",
    keep: Annotated[int, Field(ge=1)] = 5,
    dry_run: bool = False,
    folder: str = ".",
) -> Any:
    """Garbage collection: find and log what nothing refers to any more and, unless it is a dry run, delete it.

    Args:
        specs: spec files, and folders that hold some: what their models have as artifacts, repositories, stores and
            shared caches is tidied where none of a kind are named; nothing need be there yet.
        overrides: fields of a spec that win over those of every model.
        artifacts: cache, logs and history of this machine; a compile that uses them is waited for; artifacts where
            neither they nor specs are named.
        repositories: model repositories, or folders that hold those of several targets; that below the artifacts where
            neither they nor specs are named.
        stores: folders or s3://bucket/prefix, or mappings with `to`, `endpoint_url` and so on.
        shared_caches: where machines share finished steps, in the same way.
        older_than: what was used or published since stays: 12h, 30d, 4w.
        keep: so many of the newest versions of each model in a store stay, too.
        dry_run: only look.
        folder: what relative paths start from, but for those in specs.

    Returns:
        What was found, and what went, as JSON values (`fleet.maintenance.collect.Collected`); the state Skipped where
        another run of its deployment does the same; the state Failed with a PlansmithError in it where a place could
        not be tidied: the others were.
    """
    end_with_serving_process()
    if (instead := skipped()) is not None:
        return instead
    log = RunLog()

    def report(items: Sequence[RemovedItem]) -> None:
        for item in items:
            log.say(f"found: {item.kind} {item.name}, {format_bytes(item.bytes)}: {item.why}")

    below = Path(artifacts or "artifacts")
    try:
        of_specs = places_of_specs(specs, Path(folder), overrides.values)
        places = named_places(of_specs, Path(folder), repositories, stores, shared_caches, below=below)
        done = collected_in(
            CollectionScope(below if artifacts or not specs else None, places, places_of(shared_caches or [])),
            Grace(seconds=seconds_from_age(older_than), keep=keep),
            dry_run=dry_run,
            told=report,
            waiting=lambda process: log.say(f"waiting for the end of a compile (process {process or 'unknown'})"),
        )
    except PlansmithError as error:
        return log.fail(error)
    log.say(collected_counts(done))
    log.show("collection", collected_rows(done), collected_counts(done))
    if (failure := done.error()) is not None:
        return log.fail(failure)
    return done.model_dump(mode="json")
