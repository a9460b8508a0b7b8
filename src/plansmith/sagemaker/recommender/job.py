"""Jobs of Inference Recommender: started, waited for, read, stopped."""

from __future__ import annotations

from plansmith.errors import PlansmithError, UsageError
from plansmith.sagemaker.deployment.account import Account, is_taken
from plansmith.sagemaker.deployment.apply import Deployment
from plansmith.sagemaker.deployment.waiter import Observation, Polling, Progress, wait_while_pending
from plansmith.sagemaker.recommender.plan import CREATE_JOB, DESCRIBE_JOB, PAYLOADS, PlannedJob
from plansmith.sagemaker.recommender.results import ENDED, JobResult, job_result
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.system.aws.call import Call

_ENDING = (*ENDED, "STOPPING", "DELETING")


def start_job(account: Account, planned: PlannedJob, progress: Progress, transfer: Moved = untold) -> None:
    """Carry out the requests of a job; the last one starts it.

    Args:
        account: of the endpoint.
        planned: of `plan_job`.
        progress: told each step.
        transfer: told how many more bytes of archives are on their way.

    Raises:
        PlansmithError: AWS refuses one, does not allow it, or cannot be asked. What was created stays for the next run.
    """
    for upload in planned.uploads:
        progress(f"upload {upload.key}")
        account.upload(upload, transfer)
    account.put(PAYLOADS, planned.payload.name, planned.payload.archive)
    deployment = Deployment(account, progress=progress)
    for call in planned.calls:
        try:
            deployment.execute(call)
        except PlansmithError as error:
            # A job of this name has the same content: another run started it.
            if call.operation != CREATE_JOB or not is_taken(error):
                raise


def wait_for_job(account: Account, job: str, polling: Polling, progress: Progress) -> JobResult:
    """The result of a job, once it has ended.

    Args:
        account: of the endpoint.
        job: its name.
        polling: how long and how often.
        progress: told what changed.

    Raises:
        UsageError: there is no such job.
        StillPendingError: it takes longer than the limit, and goes on.
        EnvironmentFault: SageMaker cannot be asked, or does not allow it.
    """

    def observe() -> Observation[JobResult]:
        result = read_job(account, job)
        return Observation(result, result.status, result.progress, is_pending=not result.has_ended)

    return wait_while_pending(observe, polling, progress)


def read_job(account: Account, job: str) -> JobResult:
    """A job as it is now.

    Raises:
        UsageError: there is no such job.
        EnvironmentFault: SageMaker cannot be asked, or does not allow it.
    """
    description = account.find(DESCRIBE_JOB, JobName=job)
    if description is None:
        raise UsageError(
            f"there is no job {job} in {account.region}",
            remedy=f"list them: aws sagemaker list-inference-recommendations-jobs --region {account.region}",
        )
    return job_result(description, account.pages("list_inference_recommendations_job_steps", "Steps", JobName=job))


def stop_job(account: Account, job: str) -> bool:
    """Stop a job; whether it was running.

    Raises:
        UsageError: there is no such job.
        EnvironmentFault: SageMaker cannot be asked, or does not allow it.
    """
    if read_job(account, job).status in _ENDING:
        return False
    operation = "stop_inference_recommendations_job"
    account.execute(Call(service="sagemaker", operation=operation, parameters={"JobName": job}))
    return True
