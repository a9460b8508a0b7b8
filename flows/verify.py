"""Verification of published versions, by digest and on a server, as a Prefect flow.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from plansmith.errors import PlansmithError
from plansmith.fleet.maintenance.collect import verified_counts, verified_rows
from plansmith.fleet.maintenance.locations import named_places, places_of_specs
from plansmith.fleet.maintenance.verify import VerifyOptions
from plansmith.fleet.maintenance.verify import verify as verified_in
from plansmith.fleet.members import AS_SPECIFIED, SpecOverrides
from plansmith.flows.prefect_api.api import end_with_serving_process
from plansmith.flows.prefect_api.cancelling import skipped
from plansmith.flows.prefect_api.run_log import RunLog
from plansmith.records.destination import Location


def run_name() -> str:
    """Return the Prefect name of a run."""
    return f"verify: {flow_run.parameters['model'] or 'all models'}"


@flow(name="verify", flow_run_name=run_name, persist_result=False, result_serializer="json")
def verify(
    specs: tuple[str, ...] = (),
    overrides: SpecOverrides = AS_SPECIFIED,
    repositories: list[str] | None = None,
    stores: list[str | Location] | None = None,
    model: str = "",
    quick: bool = False,
    on_server: bool = True,
    tritonserver: str = "",
    folder: str = ".",
) -> Any:
    """Verify that published releases are unchanged and that a Triton still serves them with the reference's results.

    Args:
        specs: spec files, and folders that hold some: what their models have as repositories and stores is looked at
            where none are named; nothing need be there yet.
        overrides: fields of a spec that win over those of every model.
        repositories: model repositories, or folders that hold those of several targets; artifacts/repository where
            neither they nor specs are named.
        stores: folders or s3://bucket/prefix, or mappings with `to`, `endpoint_url` and so on.
        model: only this one.
        quick: by sizes and kept digests; no content is read.
        on_server: have a Triton of this machine load each version that is shown, and answer.
        tritonserver: which Triton; found where left out.
        folder: what relative paths start from, but for those in specs.

    Returns:
        What was looked at and found, as JSON values (`fleet.maintenance.verify.Verified`); the state Skipped where
        another run of its deployment does the same; the state Failed with a PlansmithError in it where something is
        damaged, answers wrongly, or could not be looked at: the table tells of all.
    """
    end_with_serving_process()
    if (instead := skipped()) is not None:
        return instead
    log = RunLog()
    manner = VerifyOptions(quick=quick, on_server=on_server, tritonserver=tritonserver)
    try:
        of_specs = places_of_specs(specs, Path(folder), overrides.values)
        places = named_places(of_specs, Path(folder), repositories, stores)
        result = verified_in(places, manner, model=model or None, tell=log.now_and_then)
    except PlansmithError as error:
        return log.fail(error)
    log.say(verified_counts(result))
    log.show("verification", verified_rows(result), verified_counts(result))
    if (failure := result.error()) is not None:
        return log.fail(failure)
    return result.model_dump(mode="json")
