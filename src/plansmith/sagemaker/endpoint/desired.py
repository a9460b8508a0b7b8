"""The desired state of an endpoint in AWS: archives, models, a configuration; all named by their content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from plansmith.records.model import Record
from plansmith.sagemaker.archives import Archive
from plansmith.sagemaker.endpoint.auto_scaling import scaling_calls
from plansmith.sagemaker.endpoint.container import container_environment, resolve_image
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.sagemaker.endpoint.variant_archives import VariantArchives
from plansmith.system.aws.call import Call
from plansmith.system.digest import digest_of

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


class ArchiveUpload(Record):
    """An archive and its place in the bucket.

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
        """Its key in full."""
        return str(self.request.parameters["Key"])


class DesiredState(Record):
    """What has to be in AWS for an endpoint.

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
        """The instances of each variant at the start."""
        kinds = ("ProductionVariants", "ShadowProductionVariants")
        variants = [variant for kind in kinds for variant in self.config.parameters.get(kind, ())]
        return {variant["VariantName"]: variant["InitialInstanceCount"] for variant in variants}


def desired_state(spec: EndpointSpec, archives: VariantArchives) -> DesiredState:
    """What has to be in AWS so that an endpoint is what its spec says.

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
    """Whether a key has the form of an archive's, of releases or of sample requests."""
    return _ARCHIVE.search(key) is not None


def name_stem(name: str) -> str:
    """The start of a name that leaves room for a digest after it."""
    return name[: _NAME_LENGTH - _DIGEST_LENGTH - 1].rstrip("-")


def job_stem(name: str) -> str:
    """The start of the names of an endpoint's recommendation jobs, to which a digest and -2 to -99 are added."""
    return name[:_JOB_STEM_LENGTH].rstrip("-")


def name_pattern(name: str) -> str:
    """The names that end in a digest after a stem, as IAM writes them."""
    return f"{name_stem(name)}-{'?' * _DIGEST_LENGTH}"


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    """Tags as SageMaker takes them."""
    return [{"Key": name, "Value": value} for name, value in sorted(tags.items())]


def parse_releases(tag: str) -> tuple[tuple[str, ...], int]:
    """The releases that a model's tag lists, and how many it has no room for."""
    match = _MORE.search(tag)
    return tuple(tag[: match.start() if match else None].split()), int(match[1]) if match else 0


def _releases_tag(releases: list[str]) -> str:
    """As many releases as a tag has room for, and how many more there are."""
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
    """The model of a variant. Its name holds a digest of its content: another content never has the same name."""
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
        "CaptureOptions": [{"CaptureMode": modes[what]} for what in dict.fromkeys(capture.what)],
    }
    if capture.kms_key:
        content["KmsKeyId"] = capture.kms_key
    if capture.json_content_types:
        content["CaptureContentTypeHeader"] = {"JsonContentTypes": list(capture.json_content_types)}
    return content


def _content_name(stem: str, content: dict[str, Any]) -> str:
    """A name that ends in a digest of its content."""
    return f"{name_stem(stem)}-{digest_of(content)[:_DIGEST_LENGTH]}"
