"""Endpoint deployment as a Prefect flow: keeps SageMaker endpoints as their files describe.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from plansmith.errors import PlansmithError
from plansmith.flows.prefect_api.api import end_with_serving_process
from plansmith.flows.prefect_api.cancelling import superseded
from plansmith.flows.prefect_api.run_log import RunLog
from plansmith.sagemaker.deployment.current import Polling
from plansmith.sagemaker.deployment.deploy import EndpointOutcome, deploy_endpoint, failed_outcome
from plansmith.sagemaker.endpoint.loader import endpoint_files


def run_name() -> str:
    """Return the Prefect name of a run: the paths of its files."""
    return f"deploy endpoints: {', '.join(Path(place).name for place in flow_run.parameters['endpoints'])}"


@flow(name="deploy-endpoints", flow_run_name=run_name, persist_result=False, result_serializer="json")
def deploy_endpoints(
    endpoints: tuple[str, ...],
    archives: str = "artifacts/sagemaker",
    wait_minutes: Annotated[int, Field(ge=1)] = 60,
    folder: str = ".",
) -> Any:
    """Deploy the endpoints that differ from their files: newer releases, approved packages, changed settings.

    Each is checked, deployed, waited for and tested by itself, so that one that fails holds up no other; it serves
    again what it did before.

    Args:
        endpoints: files of endpoints, and folders that hold some.
        archives: the folder that takes the archives.
        wait_minutes: how long an endpoint may take to come into service.
        folder: what relative paths start from, but for those in the files.

    Returns:
        What was done with each, as JSON values (`sagemaker.deployment.deploy.EndpointOutcome`); the state Skipped where
        a later run of its deployment waits as well; the state Failed with a PlansmithError in it where an endpoint
        failed: the table tells of all.
    """
    end_with_serving_process()
    if (instead := superseded()) is not None:
        return instead
    log = RunLog()
    root = Path(folder)
    polling = Polling(limit_seconds=wait_minutes * 60)
    outcomes: list[EndpointOutcome] = []
    failure: PlansmithError | None = None
    try:
        paths = endpoint_files([root / place for place in endpoints])
    except PlansmithError as error:
        return log.fail(error)
    for path in paths:
        log.say(f"{path.name}: begun")
        try:
            outcomes.append(deploy_endpoint(path, root / archives, polling, log.now_and_then))
        except PlansmithError as error:
            failure = failure or error
            outcomes.append(failed_outcome(path, error))
        log.say(outcomes[-1].summary)
    log.show("endpoints", [outcome.row() for outcome in outcomes], f"{len(outcomes)} endpoints")
    if failure is not None:
        return log.fail(failure)
    return [outcome.model_dump(mode="json") for outcome in outcomes]
