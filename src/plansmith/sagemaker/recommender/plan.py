"""Inference Recommender plan: the requests of a job, without those whose outcome is already in AWS."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import UsageError
from plansmith.formatting import format_bytes
from plansmith.records.model import Record
from plansmith.sagemaker.archives import Archive, archive_stream
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.current import CurrentState, read_current_state, require_owned
from plansmith.sagemaker.endpoint.checks import require_serveable, serving_instances
from plansmith.sagemaker.endpoint.desired import (
    OWNER_TAG,
    ArchiveUpload,
    DesiredState,
    desired_state,
    job_stem,
    tag_list,
)
from plansmith.sagemaker.endpoint.instances import known_instance
from plansmith.sagemaker.endpoint.recommendation_job import RecommendationJob
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.sagemaker.signatures import ServedModel, example_for, model_from_release
from plansmith.system.aws.client import has_credentials
from plansmith.system.aws.sagemaker_runtime import MAX_BODY_BYTES
from plansmith.system.aws.service import Call, require_valid
from plansmith.system.digest import digest_of
from plansmith.triton.client.request_inputs import checked_feed
from plansmith.triton.client.sagemaker.client import SageMakerClient
from plansmith.triton.repository.renamed import Content
from plansmith.triton.repository.repository import ModelRepository

_KEY = "recommendation_job.payload"
_DIGEST_LENGTH = 12
_ANY_REGION = "us-east-1"  # nothing is sent there

DESCRIBE_JOB = "describe_inference_recommendations_job"
CREATE_JOB = "create_inference_recommendations_job"
PAYLOADS = "payloads"
"""The folder of sample requests, below the endpoint's prefix."""

_MAX_REPEATS = 99
_DESCRIPTION_LENGTH = 128
_SINGLE_ANSWER_TYPES = (None, "infer")
_DEFAULT_JOB_SECONDS = 45 * 60
_SECONDS_PER_HOUR = 3600
_MAX_NEW_USERS = 3
"""Users who begin a phase or join in a minute, by AWS's guide to load tests."""

_TASKS = {
    "image-classification": ("COMPUTER_VISION", "IMAGE_CLASSIFICATION"),
    "object-detection": ("COMPUTER_VISION", "OBJECT_DETECTION"),
    "image-segmentation": ("COMPUTER_VISION", "IMAGE_SEGMENTATION"),
    "image-feature-extraction": ("COMPUTER_VISION", "OTHER"),
    "text-generation": ("NATURAL_LANGUAGE_PROCESSING", "TEXT_GENERATION"),
    "text2text-generation": ("NATURAL_LANGUAGE_PROCESSING", "TEXT_GENERATION"),
    "fill-mask": ("NATURAL_LANGUAGE_PROCESSING", "FILL_MASK"),
    "text-classification": ("NATURAL_LANGUAGE_PROCESSING", "CLASSIFICATION"),
    "token-classification": ("NATURAL_LANGUAGE_PROCESSING", "CLASSIFICATION"),
    "question-answering": ("NATURAL_LANGUAGE_PROCESSING", "OTHER"),
    "feature-extraction": ("NATURAL_LANGUAGE_PROCESSING", "OTHER"),
    "sentence-similarity": ("NATURAL_LANGUAGE_PROCESSING", "OTHER"),
}
"""Domain and task of SageMaker by plansmith's task."""


class Payload(Record):
    """Sample payload: requests for a job.

    Attributes:
        description: where they are from.
        content_type: of each.
        archive: the .tar.gz that holds their bodies.
        is_random: whether the values are random, as the release holds no request.
    """

    description: str
    content_type: str
    archive: bytes
    is_random: bool = False

    @property
    def name(self) -> str:
        """The file name, which includes a digest of the content."""
        return f"payload-{hashlib.sha256(self.archive).hexdigest()[:_DIGEST_LENGTH]}.tar.gz"


def make_payload(job: RecommendationJob, model: ServedModel) -> Payload:
    """Build the payload from the files that a job names, or from the request stored in its model's release.

    Args:
        job: the job.
        model: the model that is tested.

    Raises:
        UsageError: a file is empty, too large or cannot be read; or the release's request cannot be sent.
    """
    if job.payload:
        bodies = _read_files(job.payload)
        return Payload(description=", ".join(bodies), content_type=job.content_type, archive=_archive(bodies))
    example = example_for(model)
    try:
        with SageMakerClient(
            "recommender", signature=model.signature, model=model.name, region=_ANY_REGION, encoding=job.encoding
        ) as client:
            (invocation,) = client.invocations(checked_feed(model.signature, example.feed))
    except UsageError as error:
        binary = "write encoding: binary; or " if job.encoding == "json" else ""
        raise UsageError(
            f"{example.name} of {model.name} cannot be sent: {error.message}", remedy=f"{binary}name files in {_KEY}"
        ) from error
    suffix = "json" if job.encoding == "json" else "bin"
    return Payload(
        description=example.name,
        content_type=invocation.content_type,
        archive=_archive({f"request-1.{suffix}": invocation.body}),
        is_random=not example.expected_outputs,
    )


def _archive(bodies: dict[str, bytes]) -> bytes:
    return b"".join(archive_stream({name: Content.of(body) for name, body in bodies.items()}))


def _read_files(files: Sequence[str]) -> dict[str, bytes]:
    """Return the bodies in files, by file name."""
    bodies: dict[str, bytes] = {}
    for file in map(Path, files):
        try:
            body = file.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}", remedy=f"name another in {_KEY}") from error
        if not 0 < len(body) <= MAX_BODY_BYTES:
            limit = format_bytes(MAX_BODY_BYTES)
            size = f"has {format_bytes(len(body))}, and SageMaker takes {limit}" if body else "is empty"
            raise UsageError(f"the sample request {file} {size}", remedy=f"name another in {_KEY}")
        if file.name in bodies:
            raise UsageError(f"two sample requests are called {file.name}", remedy="rename one of them")
        bodies[file.name] = body
    return bodies


class JobEstimate(Record):
    """Job estimate: upper bounds of a job's load tests, duration and instance hours.

    Attributes:
        tests: how many load tests; None where AWS chooses them.
        parallel_tests: how many of them at a time.
        test_seconds: the load of each.
        max_seconds: the whole job.
        instance_hours: under load, by instance type; the start of an instance is billed besides.
    """

    tests: int | None = None
    parallel_tests: int | None = None
    test_seconds: int | None = None
    max_seconds: int
    instance_hours: dict[str, float]


@dataclass(frozen=True)
class PlannedJob:
    """Planned job.

    Attributes:
        spec: the endpoint, with the tested variant only.
        name: the job's.
        status: its state in AWS; empty where it does not exist.
        uploads: the archives to upload.
        payload: the sample requests.
        payload_call: their upload as a request of boto3, without the body.
        calls: the requests that create the model, unless it exists, and start the job.
        estimate: what it takes.
        warnings: what to know before it is started.
        is_assumed: AWS was not asked, and nothing is assumed to exist.
    """

    spec: EndpointSpec
    name: str
    status: str
    uploads: tuple[ArchiveUpload, ...]
    payload: Payload
    payload_call: Call
    calls: tuple[Call, ...]
    estimate: JobEstimate
    warnings: tuple[str, ...]
    is_assumed: bool

    @property
    def requests(self) -> tuple[Call, ...]:
        """All requests in order; none if the job exists."""
        if self.status:
            return ()
        return (*(upload.request for upload in self.uploads), self.payload_call, *self.calls)


def job_of(spec: EndpointSpec) -> RecommendationJob:
    """Return the job that an endpoint file describes; a default job if it describes none."""
    return spec.recommendation_job or RecommendationJob()


def tested_endpoint(spec: EndpointSpec) -> EndpointSpec:
    """Return an endpoint with only the variant whose model is tested.

    Raises:
        UsageError: the file describes no job, and there are several variants or models.
    """
    job = job_of(spec)
    variants = tuple(variant for variant in spec.variants if job.variant in {None, variant.name})
    if len(variants) != 1 or variants[0].multi_model:
        raise UsageError(
            f"{spec.name} serves several models, and a job of Inference Recommender tests one",
            remedy="name a variant with one model: recommendation_job: {variant: NAME}",
        )
    return spec.model_copy(update={"variants": variants, "shadow_variants": (), "recommendation_job": job})


def plan_job(
    spec: EndpointSpec, archives: Sequence[Archive], account: Account, *, dry_run: bool, again: bool = False
) -> PlannedJob:
    """Check a job and plan it from the current state in AWS; changes nothing.

    Args:
        spec: of `tested_endpoint`.
        archives: of its variant.
        account: of the endpoint; a dry run without credentials does not ask it.
        dry_run: whether nothing will be done.
        again: whether to run a job that was run already once more.

    Raises:
        EngineError: an instance type cannot serve the model.
        UsageError: there is no request to send, or AWS would refuse something.
        RepositoryError: the bucket cannot be used, or something belongs to somebody else.
        EnvironmentFault: AWS cannot be asked, or does not allow it.
    """
    job, (variant,) = job_of(spec), spec.variants
    _require_all_serveable(spec, job, archives)
    release = archives[0].releases[0]
    model = model_from_release(ModelRepository(Path(spec.repository)), release)
    _require_requests(variant, job, model)
    payload = make_payload(job, model)
    desired = desired_state(spec, {variant.name: tuple(archives)})
    current, status = CurrentState(is_assumed=True), ""
    create = _job_call(spec, desired, archives, model, payload)
    if not dry_run or has_credentials():
        account.require_role()
        current = read_current_state(account, desired)
        require_owned(desired, current)
        create, status = _named(account, create, again=again)
    calls = (*(call for call in desired.models if call.parameters["ModelName"] not in current.models), create)
    for call in calls:
        require_valid(call)
    return PlannedJob(
        spec=spec,
        name=create.parameters["JobName"],
        status=status,
        uploads=tuple(upload for upload in desired.uploads if upload.key not in current.uploaded),
        payload=payload,
        payload_call=_payload_call(spec, payload),
        calls=calls,
        estimate=_estimate(job),
        warnings=tuple(_warnings(job, payload)),
        is_assumed=current.is_assumed,
    )


def _require_all_serveable(spec: EndpointSpec, job: RecommendationJob, archives: Sequence[Archive]) -> None:
    """Check that each tested instance type can serve the model; the variant's own if none is named."""
    (variant,) = spec.variants
    types = job.instance_types or (variant.instance_type,)
    # Each as a variant of its own, so that the message tells the reasons of all.
    tested = tuple(variant.model_copy(update={"name": name, "instance_type": name}) for name in types)
    require_serveable(spec.model_copy(update={"variants": tested}), dict.fromkeys(types, tuple(archives)))


def _require_requests(variant: VariantSpec, job: RecommendationJob, model: ServedModel) -> None:
    is_single = variant.environment.inference_type in _SINGLE_ANSWER_TYPES and not model.signature.is_decoupled
    if not (job.payload or is_single):
        raise UsageError(
            f"{model.name} gives several answers to a request, which a release does not hold",
            remedy="name files with requests in recommendation_job.payload",
        )


def _payload_call(spec: EndpointSpec, payload: Payload) -> Call:
    key = f"{spec.archive_prefix}{PAYLOADS}/{payload.name}"
    return Call(service="s3", operation="put_object", parameters={"Bucket": spec.bucket_name, "Key": key})


def _job_call(
    spec: EndpointSpec, desired: DesiredState, archives: Sequence[Archive], model: ServedModel, payload: Payload
) -> Call:
    """Return the request that starts the job; its name contains a digest of the whole content."""
    job = job_of(spec)
    content: dict[str, Any] = {
        "JobType": "Advanced" if job.is_advanced else "Default",
        "RoleArn": spec.role,
        "InputConfig": {
            "ModelName": desired.models[0].parameters["ModelName"],
            **(_load(job) if job.is_advanced else {}),
            **({"VolumeKmsKeyId": spec.kms_key} if spec.kms_key else {}),
            "ContainerConfig": _container(spec, job, model, payload, _supported_types(spec, job, archives)),
            **({"VpcConfig": desired.models[0].parameters["VpcConfig"]} if spec.vpc else {}),
        },
        **({"StoppingConditions": _stopping_conditions(job)} if job.is_advanced else {}),
    }
    releases = ", ".join(release for archive in archives for release in archive.releases)
    return Call(
        service="sagemaker",
        operation=CREATE_JOB,
        parameters={
            "JobName": f"{job_stem(spec.name)}-{digest_of(content)[:_DIGEST_LENGTH]}",
            "JobDescription": f"plansmith: {releases}"[:_DESCRIPTION_LENGTH],
            **content,
            "Tags": tag_list({**spec.tags, OWNER_TAG: spec.name}),
        },
    )


def _load(job: RecommendationJob) -> dict[str, Any]:
    ranges = [{"Name": name, "Value": list(values)} for name, values in sorted(job.environment.items())]
    varied = {"EnvironmentParameterRanges": {"CategoricalParameterRanges": ranges}} if ranges else {}
    return {
        "JobDurationInSeconds": job.seconds,
        "TrafficPattern": job.traffic,
        "ResourceLimit": {"MaxNumberOfTests": job.tests, "MaxParallelOfTests": job.parallel_tests},
        "EndpointConfigurations": [{"InstanceType": name, **varied} for name in job.instance_types],
    }


def _container(
    spec: EndpointSpec, job: RecommendationJob, model: ServedModel, payload: Payload, types: Sequence[str]
) -> dict[str, Any]:
    task = model.manifest.source.task if model.manifest and model.manifest.source.task else ""
    domain, kind = _TASKS.get(task, ("MACHINE_LEARNING", "OTHER"))
    key = _payload_call(spec, payload).parameters["Key"]
    optional = {
        "FrameworkVersion": job.framework_version,
        "NearestModelName": job.nearest_model,
        "SupportedInstanceTypes": list(types),
        # A default job would try serverless endpoints as well.
        "SupportedEndpointType": "" if job.is_advanced else "RealTime",
    }
    return {
        "Domain": job.domain or domain,
        "Task": job.task or kind,
        "Framework": job.framework,
        **{name: value for name, value in optional.items() if value},
        "PayloadConfig": {
            "SamplePayloadUrl": f"s3://{spec.bucket_name}/{key}",
            "SupportedContentTypes": [payload.content_type],
        },
    }


def _supported_types(spec: EndpointSpec, job: RecommendationJob, archives: Sequence[Archive]) -> list[str]:
    """Return the instance types to test: those of the job; else, for GPU models, those that can serve them.

    Raises:
        UsageError: none of these takes the key for volumes that the file names.
    """
    types = list(job.instance_types)
    if not types and any(archive.device == "gpu" for archive in archives):
        types = serving_instances(archives[0])
    # Disks of an instance's own take no key of KMS, and are encrypted by themselves.
    fitting = [name for name in types if not (spec.kms_key and known_instance(name).local_storage)]
    if types and not fitting:
        raise UsageError(
            f"{', '.join(types)} have disks of their own, for which SageMaker takes no kms_key",
            remedy="leave out kms_key, or name other instance types in recommendation_job.instance_types",
        )
    return fitting


def _stopping_conditions(job: RecommendationJob) -> dict[str, Any]:
    stop = job.stop_when
    assert stop is not None, "find_job_contradictions"
    latency = [{"Percentile": "P95", "ValueInMilliseconds": stop.p95_ms}] if stop.p95_ms else []
    optional = {"MaxInvocations": stop.max_invocations, "ModelLatencyThresholds": latency}
    return {
        "FlatInvocations": stop.flat_invocations.capitalize(),
        **{name: value for name, value in optional.items() if value},
    }


def _named(account: Account, create: Call, *, again: bool) -> tuple[Call, str]:
    """Return the request under its name, and the state of the job with that name: of several, the last one.

    Raises:
        UsageError: another run is asked for, and there are no more names.
    """
    first = create.parameters["JobName"]
    name, status = first, ""
    for number in range(1, _MAX_REPEATS + 1):
        candidate = first if number == 1 else f"{first}-{number}"
        job = account.find(DESCRIBE_JOB, JobName=candidate)
        if job is None:
            name, status = (candidate, "") if again or number == 1 else (name, status)
            break
        name, status = candidate, str(job["Status"])
    else:
        if again:
            raise UsageError(f"the same job was run {_MAX_REPEATS} times", remedy="change something in the file")
    return create.model_copy(update={"parameters": {**create.parameters, "JobName": name}}), status


def _estimate(job: RecommendationJob) -> JobEstimate:
    if not job.is_advanced:
        # docs.aws.amazon.com/sagemaker/latest/dg/inference-recommender-instance-recommendation.html
        return JobEstimate(max_seconds=_DEFAULT_JOB_SECONDS, instance_hours={})
    hours = job.configurations // len(job.instance_types) * job.test_seconds / _SECONDS_PER_HOUR
    return JobEstimate(
        tests=job.tests,
        parallel_tests=job.parallel_tests,
        test_seconds=job.test_seconds,
        max_seconds=job.seconds,
        instance_hours=dict.fromkeys(job.instance_types, round(hours, 4)),
    )


def _warnings(job: RecommendationJob, payload: Payload) -> list[str]:
    """Yield warnings before a job is started; AWS may still accept it."""
    lines = []
    if payload.is_random:
        lines.append("the release holds no request, and a random one is sent: name real ones in payload")
    for number, phase in enumerate(job.phases, 1):
        if max(phase.InitialNumberOfUsers, phase.SpawnRate) > _MAX_NEW_USERS:
            lines.append(f"phase {number}: AWS's guide names 1 to 3 InitialNumberOfUsers and 0 to 3 SpawnRate")
    for number, (before, after) in enumerate(zip(job.phases, job.phases[1:], strict=False), 2):
        # docs.aws.amazon.com/sagemaker/latest/dg/inference-recommender-troubleshooting.html
        if abs(after.InitialNumberOfUsers - before.final_users) > _MAX_NEW_USERS:
            lines.append(
                f"phase {number} begins with {after.InitialNumberOfUsers} users and the one before ends with"
                f" {before.final_users}: AWS's guide lets them differ by 3"
            )
    if not job.is_advanced:
        return lines
    if job.configurations > job.tests:
        lines.append(f"at most {job.tests} of {job.configurations} configurations are tested, which AWS chooses")
    fitting = job.seconds // max(1, job.test_seconds) * job.parallel_tests
    if fitting < job.tests:
        lines.append(f"{fitting} of {job.tests} load tests fit into {job.seconds} s")
    return lines
