"""Desired state of an endpoint in AWS: archives, models and a configuration, all named by their content."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.target_names import CPU_SUFFIX
from plansmith.config.targets import Target, load_target
from plansmith.errors import PlansmithError, UsageError
from plansmith.records.model import Device, Record
from plansmith.sagemaker.archives import Archive, ArchivePlan, plan_archives, write_archive
from plansmith.sagemaker.endpoint.instances import container_target, image_uri, known_instance, versions
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VARIABLE_FIELDS, VariantSpec
from plansmith.sagemaker.selection import FLAVOUR, PackageRequest
from plansmith.sagemaker.start_script import ADDITIONAL_ARGUMENTS, VARIABLE_PREFIX
from plansmith.system.aws.service import Call
from plansmith.system.digest import digest_of
from plansmith.triton.repository.repository import ModelRepository

SERVICE = "application-autoscaling"
NAMESPACE = "sagemaker"
POLICY_PREFIX = "plansmith-"
"""The start of the names of plansmith's scaling policies."""

POLICY_FIELD = "TargetTrackingScalingPolicyConfiguration"
_DIMENSION = "sagemaker:variant:DesiredInstanceCount"

_VERSION_COMPATIBLE = "--backend-config=tensorrt,version-compatible=true"
VariantArchives = Mapping[str, tuple[Archive, ...]]
"""The archives of each variant, by its name: one, or of a multi-model variant any number."""

Plans = Mapping[str, tuple[ArchivePlan, ...]]
OWNER_TAG = "plansmith:endpoint"
"""The tag of all that was created for an endpoint; its value is the endpoint's name."""

RELEASES_TAG = "plansmith:releases"
"""The tag of a model that lists the releases in its archives."""

VERIFIED_TAG = "plansmith:verified"
"""The tag of an endpoint that names the last configuration that came into service and passed its smoke test, if any."""

_NAME_LENGTH = 63
_TAG_LENGTH = 256
_DIGEST_LENGTH = 12
_JOB_STEM_LENGTH = 47  # of 64 characters, -0123456789ab-99 takes 16
_MORE = re.compile(r"and (\d+) more$")
_ARCHIVE = re.compile(r"(-\d+-[0-9a-f]{8}|/payload-[0-9a-f]{12})\.tar\.gz$")


def resource_id(endpoint: str, variant: str) -> str:
    """Return the name of a variant in Application Auto Scaling."""
    return f"endpoint/{endpoint}/variant/{variant}"


def scalable_target(endpoint: str, variant: str) -> dict[str, Any]:
    """Return the parameters that identify a variant as a scalable target."""
    return {
        "ServiceNamespace": NAMESPACE,
        "ResourceId": resource_id(endpoint, variant),
        "ScalableDimension": _DIMENSION,
    }


def register_call(endpoint: str, variant: str, limits: dict[str, Any]) -> Call:
    """Return the request that lets a variant scale between two instance counts."""
    parameters = scalable_target(endpoint, variant) | limits
    return Call(service=SERVICE, operation="register_scalable_target", parameters=parameters)


def policy_call(endpoint: str, variant: str, name: str, configuration: dict[str, Any]) -> Call:
    """Return the request for a scaling policy that tracks a metric."""
    return Call(
        service=SERVICE,
        operation="put_scaling_policy",
        parameters={
            "PolicyName": name,
            **scalable_target(endpoint, variant),
            "PolicyType": "TargetTrackingScaling",
            POLICY_FIELD: configuration,
        },
    )


def deregister_call(endpoint: str, variant: str) -> Call:
    """Return the request that ends a variant's scaling, with its policies."""
    return Call(service=SERVICE, operation="deregister_scalable_target", parameters=scalable_target(endpoint, variant))


def delete_policy_call(endpoint: str, variant: str, name: str) -> Call:
    """Return the request that deletes a scaling policy."""
    parameters = {"PolicyName": name, **scalable_target(endpoint, variant)}
    return Call(service=SERVICE, operation="delete_scaling_policy", parameters=parameters)


def scaling_calls(endpoint: str, variant: VariantSpec) -> tuple[Call, ...]:
    """Return the requests for a variant's scaling as its spec describes: its limits, and a policy per metric.

    Metrics: docs.aws.amazon.com/sagemaker/latest/dg/monitoring-cloudwatch.html; for multi-model variants
    multi-model-endpoints-autoscaling.html there.
    """
    scaling = variant.auto_scaling
    if scaling is None:
        return ()
    limits = {"MinCapacity": scaling.min_instances, "MaxCapacity": scaling.max_instances}
    cooldowns = {
        "ScaleInCooldown": scaling.scale_in_seconds,
        "ScaleOutCooldown": scaling.scale_out_seconds,
        "DisableScaleIn": not scaling.scale_in,
    }
    instance = known_instance(variant.instance_type)
    # CloudWatch's utilization is the sum over the CPU cores or GPUs of an instance: 100 % for each.
    metrics: dict[str, tuple[float | None, dict[str, Any]]] = {
        "invocations": (
            scaling.invocations_per_instance,
            {"PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"}},
        ),
        "gpu": (
            (scaling.gpu_utilization or 0) * instance.gpus,
            _utilization_metric("GPUUtilization", endpoint, variant.name),
        ),
        "cpu": (
            (scaling.cpu_utilization or 0) * instance.vcpus,
            _utilization_metric("CPUUtilization", endpoint, variant.name),
        ),
    }
    policies = (
        policy_call(
            endpoint, variant.name, f"{POLICY_PREFIX}{name}", {"TargetValue": float(value), **metric, **cooldowns}
        )
        for name, (value, metric) in metrics.items()
        if value
    )
    return (register_call(endpoint, variant.name, limits), *policies)


def _utilization_metric(name: str, endpoint: str, variant: str) -> dict[str, Any]:
    dimensions = {"EndpointName": endpoint, "VariantName": variant}
    return {
        "CustomizedMetricSpecification": {
            "MetricName": name,
            "Namespace": "/aws/sagemaker/Endpoints",
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            "Statistic": "Average",
            "Unit": "Percent",
        }
    }


@dataclass(frozen=True)
class Image:
    """Container image of a variant.

    Attributes:
        uri: its name in full.
        device: what its instances compute on.
        target: what is in it.
    """

    uri: str
    device: Device
    target: Target


def resolve_image(region: str, variant: VariantSpec, archives: Sequence[Archive]) -> Image:
    """Return the image of a variant: set by its spec, otherwise by the target and device of its archives.

    Args:
        region: the endpoint's.
        variant: the variant.
        archives: those it serves.

    Raises:
        UsageError: there is none, or the archives need different ones.
    """
    device: Device = "gpu" if any(archive.device == "gpu" for archive in archives) else "cpu"
    if variant.image.version:
        target = container_target(variant.image.version, device)
    else:
        runtimes = sorted({archive.target.removesuffix(CPU_SUFFIX) for archive in archives})
        if len(runtimes) > 1:
            raise UsageError(
                f"its archives are for {' and '.join(runtimes)}, and it has one container",
                remedy="compile all for one target, or name one: `image: {version: ...}` of the variant",
            )
        target = load_target(archives[0].target)
    if target.flavour != FLAVOUR:
        raise UsageError(
            f"{target.name} is no image of SageMaker",
            remedy=f"compile it for --target {FLAVOUR}-{versions()[-1]}, or name an image with image.version",
        )
    uri = variant.image.uri or image_uri(target, device, region, account=variant.image.account)
    return Image(uri, device, target)


def container_environment(variant: VariantSpec, archives: Sequence[Archive]) -> dict[str, str]:
    """Return the container's environment: required by the archives, then overridden by the variant."""
    settings = variant.environment
    needed: dict[str, str] = {}
    arguments = list(settings.additional_args)
    for archive in archives:
        needed |= archive.environment
        arguments += needed.pop(ADDITIONAL_ARGUMENTS, "").split()
        arguments += [_VERSION_COMPATIBLE] if archive.version_compatible else []
    default = "" if variant.multi_model else settings.default_model or archives[0].default_model
    values: dict[str, object] = {name: getattr(settings, field) for name, field in VARIABLE_FIELDS.items()} | {
        "DEFAULT_MODEL_NAME": default,
        "ADDITIONAL_ARGS": " ".join(dict.fromkeys(arguments)),
    }
    typed = {f"{VARIABLE_PREFIX}{name}": _text(value) for name, value in values.items() if value not in {None, ""}}
    return dict(sorted({**needed, **typed, **settings.variables}.items()))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan_variant_archives(spec: EndpointSpec, output: Path) -> Plans:
    """Check that the archives of all variants can be written; writes nothing.

    Args:
        spec: the endpoint.
        output: the folder that will take them.

    Raises:
        RepositoryError: a release is missing or damaged, or a container would refuse it.
        EngineError: a release was compiled for something else than an image of SageMaker.
        UsageError: the models of a variant do not fit together.
    """
    repository = ModelRepository(Path(spec.repository))
    plans = {}
    for variant in spec.all_variants:
        try:
            plans[variant.name] = tuple(plan_archives(repository, _request(variant), output))
        except PlansmithError as error:
            raise error.located(model=f"variant {variant.name}") from error
    return plans


def planned_archives(plans: Plans) -> VariantArchives:
    """Return the planned archives, without digests."""
    return {name: tuple(plan.archive for plan in own) for name, own in plans.items()}


def write_variant_archives(plans: Plans, progress: Callable[[int], None] = lambda _: None) -> VariantArchives:
    """Write the archives of all variants, unless they exist.

    Args:
        plans: of `plan_variant_archives`.
        progress: told how many more bytes were read.

    Raises:
        RepositoryError: a file of a release is damaged; the disk is full or not writable.
    """
    return {name: tuple(write_archive(plan, progress) for plan in own) for name, own in plans.items()}


def _request(variant: VariantSpec) -> PackageRequest:
    return PackageRequest(
        releases=variant.models,
        multi_model=variant.multi_model,
        copies=variant.copies,
        default_model="" if variant.multi_model else variant.environment.default_model,
        target=_target(variant),
    )


def _target(variant: VariantSpec) -> Target | None:
    """Return the image target of the variant if the spec names a version; None for that of the releases."""
    if variant.image.version is None:
        return None
    return container_target(variant.image.version, "gpu" if known_instance(variant.instance_type).gpus else "cpu")


class ArchiveUpload(Record):
    """Archive upload: an archive and its place in the bucket.

    Attributes:
        archive: the archive.
        folder: the prefix that takes it under its own file name, below the endpoint's prefix: archives, or the name of
            a multi-model variant.
        request: the upload as a request of boto3, which sends a large archive in parts.
    """

    archive: Archive
    folder: str
    request: Call

    @property
    def key(self) -> str:
        """The archive's full key."""
        return str(self.request.parameters["Key"])


class DesiredState(Record):
    """Desired state of an endpoint in AWS.

    Attributes:
        endpoint: its name.
        arn: its ARN.
        tags: its tags.
        uploads: the archives.
        models: the requests that create the models.
        config: the request that creates the endpoint configuration.
        scaling: the requests that let variants scale, by the variant's name.
        instance_types: by the variant's name.
        target_models: the archives of multi-model variants as requests name them (TargetModel), by the variant's name.
    """

    endpoint: str
    arn: str
    tags: dict[str, str]
    uploads: tuple[ArchiveUpload, ...]
    models: tuple[Call, ...]
    config: Call
    scaling: dict[str, tuple[Call, ...]]
    instance_types: dict[str, str]
    target_models: dict[str, tuple[str, ...]]

    @property
    def config_name(self) -> str:
        """The name of the endpoint configuration."""
        return str(self.config.parameters["EndpointConfigName"])

    @property
    def instance_counts(self) -> dict[str, int]:
        """The initial number of instances of each variant."""
        kinds = ("ProductionVariants", "ShadowProductionVariants")
        variants = [variant for kind in kinds for variant in self.config.parameters.get(kind, ())]
        return {variant["VariantName"]: variant["InitialInstanceCount"] for variant in variants}


def desired_state(spec: EndpointSpec, archives: VariantArchives) -> DesiredState:
    """Return the desired state in AWS for an endpoint spec.

    Args:
        spec: the endpoint, which `require_serveable` passed.
        archives: of each variant; their digests are not needed.
    """
    models = {variant.name: _model_call(spec, variant, archives[variant.name]) for variant in spec.all_variants}
    uploads = {
        upload.key: upload
        for variant in spec.all_variants
        for upload in (_upload(spec, variant, archive) for archive in archives[variant.name])
    }
    return DesiredState(
        endpoint=spec.name,
        arn=spec.arn("endpoint", spec.name),
        tags={**spec.tags, OWNER_TAG: spec.name},
        uploads=tuple(uploads.values()),
        models=tuple({call.parameters["ModelName"]: call for call in models.values()}.values()),
        config=_config_call(spec, {name: call.parameters["ModelName"] for name, call in models.items()}),
        scaling={variant.name: scaling_calls(spec.name, variant) for variant in spec.variants if variant.auto_scaling},
        instance_types={variant.name: variant.instance_type for variant in spec.all_variants},
        target_models={
            variant.name: tuple(Path(archive.file).name for archive in archives[variant.name])
            for variant in spec.all_variants
            if variant.multi_model
        },
    )


def is_archive(key: str) -> bool:
    """Whether a key has the form of an archive's key, of releases or of sample requests."""
    return _ARCHIVE.search(key) is not None


def name_stem(name: str) -> str:
    """Return the start of a name, with room for a digest after it."""
    return name[: _NAME_LENGTH - _DIGEST_LENGTH - 1].rstrip("-")


def job_stem(name: str) -> str:
    """Return the prefix of an endpoint's recommendation job names, to which a digest and -2 to -99 are added."""
    return name[:_JOB_STEM_LENGTH].rstrip("-")


def name_pattern(name: str) -> str:
    """Return the IAM pattern of names that end in a digest after a stem."""
    return f"{name_stem(name)}-{'?' * _DIGEST_LENGTH}"


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    """Return tags in SageMaker's form."""
    return [{"Key": name, "Value": value} for name, value in sorted(tags.items())]


def parse_releases(tag: str) -> tuple[tuple[str, ...], int]:
    """Parse the releases in a model's tag, and the number that did not fit into it."""
    match = _MORE.search(tag)
    return tuple(tag[: match.start() if match else None].split()), int(match[1]) if match else 0


def _releases_tag(releases: list[str]) -> str:
    """Return as many releases as fit in a tag, and the number of the others."""
    for more in range(len(releases)):
        names = releases[: len(releases) - more]
        text = " ".join([*names, f"and {more} more"] if more else names)
        if len(text) <= _TAG_LENGTH:
            return text
    return f"and {len(releases)} more"


def _upload(spec: EndpointSpec, variant: VariantSpec, archive: Archive) -> ArchiveUpload:
    folder = variant.name if variant.multi_model else "archives"
    parameters: dict[str, Any] = {
        "Filename": archive.file,
        "Bucket": spec.bucket_name,
        "Key": f"{spec.archive_prefix}{folder}/{Path(archive.file).name}",
    }
    if spec.bucket_kms_key:
        parameters["ExtraArgs"] = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": spec.bucket_kms_key}
    request = Call(service="s3", operation="upload_file", parameters=parameters)
    return ArchiveUpload(archive=archive, folder=folder, request=request)


def _model_call(spec: EndpointSpec, variant: VariantSpec, archives: tuple[Archive, ...]) -> Call:
    """Return the CreateModel call of a variant. The name contains a content digest, so it is unique per content."""
    if variant.multi_model:
        source = {
            "Mode": "MultiModel",
            "ModelDataUrl": f"s3://{spec.bucket_name}/{spec.archive_prefix}{variant.name}/",
        }
    else:
        key = _upload(spec, variant, archives[0]).key
        source = {"Mode": "SingleModel", "ModelDataUrl": f"s3://{spec.bucket_name}/{key}"}
    content: dict[str, Any] = {
        "PrimaryContainer": {
            "Image": resolve_image(spec.region, variant, archives).uri,
            **source,
            "Environment": container_environment(variant, archives),
        },
        "ExecutionRoleArn": spec.role,
    }
    if spec.vpc:
        content["VpcConfig"] = {
            "SecurityGroupIds": list(spec.vpc.security_groups),
            "Subnets": list(spec.vpc.subnets),
        }
    if spec.network_isolation:
        content["EnableNetworkIsolation"] = True
    releases = sorted({release for archive in archives for release in archive.releases})
    tags = {**spec.tags, OWNER_TAG: spec.name, RELEASES_TAG: _releases_tag(releases)}
    name = _content_name(f"{spec.name}-{variant.name}", content)
    return Call(
        service="sagemaker",
        operation="create_model",
        parameters={"ModelName": name, **content, "Tags": tag_list(tags)},
    )


def _config_call(spec: EndpointSpec, models: dict[str, str]) -> Call:
    content: dict[str, Any] = {"ProductionVariants": [_variant(variant, models) for variant in spec.variants]}
    if spec.shadow_variants:
        content["ShadowProductionVariants"] = [_variant(variant, models) for variant in spec.shadow_variants]
    if spec.data_capture:
        content["DataCaptureConfig"] = _data_capture(spec)
    if spec.kms_key:
        content["KmsKeyId"] = spec.kms_key
    tags = {**spec.tags, OWNER_TAG: spec.name}
    return Call(
        service="sagemaker",
        operation="create_endpoint_config",
        parameters={"EndpointConfigName": _content_name(spec.name, content), **content, "Tags": tag_list(tags)},
    )


def _variant(variant: VariantSpec, models: dict[str, str]) -> dict[str, Any]:
    optional = {
        "VolumeSizeInGB": variant.volume_gb,
        "ModelDataDownloadTimeoutInSeconds": variant.download_seconds,
        "ContainerStartupHealthCheckTimeoutInSeconds": variant.startup_seconds,
        "InferenceAmiVersion": variant.inference_ami,
    }
    return {
        "VariantName": variant.name,
        "ModelName": models[variant.name],
        "InstanceType": variant.instance_type,
        "InitialInstanceCount": variant.instance_count,
        "InitialVariantWeight": variant.weight,
        **{name: value for name, value in optional.items() if value},
    }


def _data_capture(spec: EndpointSpec) -> dict[str, Any]:
    capture = spec.data_capture
    assert capture is not None
    modes = {"input": "Input", "output": "Output"}
    content: dict[str, Any] = {
        "EnableCapture": True,
        "InitialSamplingPercentage": capture.percent,
        "DestinationS3Uri": capture.to,
        "CaptureOptions": [{"CaptureMode": modes[direction]} for direction in dict.fromkeys(capture.what)],
    }
    if capture.kms_key:
        content["KmsKeyId"] = capture.kms_key
    if capture.json_content_types:
        content["CaptureContentTypeHeader"] = {"JsonContentTypes": list(capture.json_content_types)}
    return content


def _content_name(stem: str, content: dict[str, Any]) -> str:
    """Return a name that ends in a digest of its content."""
    return f"{name_stem(stem)}-{digest_of(content)[:_DIGEST_LENGTH]}"
