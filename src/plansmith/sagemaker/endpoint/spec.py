"""Endpoint specification: one YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from plansmith.config.spec import Problem
from plansmith.errors import UsageError
from plansmith.records.destination import wrong_place
from plansmith.records.fields import Count, Switch, matching
from plansmith.records.model import Device, Record
from plansmith.sagemaker.endpoint.instances import (
    container_target,
    ecr_image,
    image_uri,
    is_region,
    known_instance,
    nearest_regions,
    partition_of,
    regions,
)
from plansmith.sagemaker.endpoint.recommendation_job import RecommendationJob, find_job_contradictions
from plansmith.sagemaker.endpoint.variant import Name, VariantSpec

# Patterns of docs.aws.amazon.com/sagemaker/latest/APIReference: RoleArn, KmsKeyId, Tag, VpcConfig.
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@/_-]+")
_KEY = re.compile(r"[a-zA-Z0-9:/_-]+")
_TAG = re.compile(r"[\w .:/=+@-]*")
_SECURITY_GROUP, _SUBNET = re.compile(r"sg-[0-9a-z]+"), re.compile(r"subnet-[0-9a-z]+")
_MAX_VARIANTS = 10
_OWN_TAGS = "plansmith:"

KmsKey = Annotated[str, matching(_KEY, "must be a key of KMS: its ID, its ARN or alias/NAME", or_empty=True)]
_KINDS = ("variants", "shadow_variants")


def _check_region(value: str) -> str:
    if not is_region(value):
        near = nearest_regions(value)
        raise ValueError("is no region, such as us-east-1" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    return value


def _check_bucket(value: str) -> str:
    problem = wrong_place(value) or ("" if value.startswith("s3://") else "it is a folder")
    if problem:
        raise ValueError(f"must be s3://bucket/prefix: {problem}")
    return value.rstrip("/")


def _check_tag_name(value: str) -> str:
    if not value or len(value) > 128 or not _TAG.fullmatch(value):
        raise ValueError("the name of a tag has 1 to 128 letters, digits, spaces and . : / = + - @ _")
    if value.startswith((_OWN_TAGS, "aws:")):
        raise ValueError(f"tags that begin with {_OWN_TAGS} or aws: are reserved")
    return value


def _check_tag(value: str) -> str:
    if len(value) > 256 or not _TAG.fullmatch(value):
        raise ValueError("a tag has at most 256 letters, digits, spaces and . : / = + - @ _")
    return value


def _read_smoke_test(value: object) -> object:
    """Parse the smoke test setting: false disables it; true, or nothing, is the default."""
    return None if value is False else {} if value is True or value is None else value


Bucket = Annotated[str, AfterValidator(_check_bucket)]


class DataCapture(Record):
    """Data capture: requests and responses that SageMaker writes to S3."""

    to: Bucket = Field(description="s3://bucket/prefix.")
    percent: Annotated[Count, Field(ge=0, le=100)] = Field(default=100, description="Share of the requests.")
    what: tuple[Literal["input", "output"], ...] = Field(
        default=("input", "output"), min_length=1, description="Requests, answers or both."
    )
    kms_key: KmsKey = Field(default="", description="Key that encrypts them.")
    json_content_types: tuple[str, ...] = Field(
        default=("application/json",), description="Content types that are written as JSON; others in base64."
    )


class Vpc(Record):
    """VPC: the network of the containers."""

    subnets: tuple[Annotated[str, matching(_SUBNET, "is no subnet, such as subnet-0a1b2c3d")], ...] = Field(
        min_length=1, max_length=16
    )
    security_groups: tuple[
        Annotated[str, matching(_SECURITY_GROUP, "is no security group, such as sg-0a1b2c3d")], ...
    ] = Field(min_length=1, max_length=5)


class SmokeTest(Record):
    """Smoke test: a request that each production variant must answer before a deployment succeeds."""

    body: str = Field(
        default="",
        description="File with its body, relative to the spec; the releases' requests when empty.",
    )
    content_type: str = Field(default="application/json", description="Content type of the body.")


class EndpointSpec(Record):
    """SageMaker endpoint."""

    name: Name = Field(description="Its name, in its region.")
    region: Annotated[str, AfterValidator(_check_region)] = Field(description="Its region, such as us-east-1.")
    role: Annotated[
        str, matching(_ROLE, "must be the ARN of a role, such as arn:aws:iam::123456789012:role/endpoint")
    ] = Field(description="ARN of the execution role, with which SageMaker reads archives and images and writes logs.")
    bucket: Bucket = Field(description="Place of the archives: s3://bucket/prefix, in the endpoint's region.")
    bucket_kms_key: KmsKey = Field(default="", description="Key that encrypts the archives; the bucket's when empty.")
    repository: str = Field(
        default="artifacts/repository", min_length=1, description="The model repository, relative to the spec."
    )
    variants: tuple[VariantSpec, ...] = Field(
        min_length=1, max_length=_MAX_VARIANTS, description="The production variants, which share the requests."
    )
    shadow_variants: tuple[VariantSpec, ...] = Field(
        default=(),
        max_length=1,
        description="A variant that gets copies of the requests; its answers are dropped.",
    )
    data_capture: DataCapture | None = Field(default=None, description="Write requests and answers to S3.")
    vpc: Vpc | None = Field(default=None, description="The network of the containers.")
    network_isolation: Switch = Field(default=False, description="Give the containers no network at all.")
    kms_key: KmsKey = Field(default="", description="Key that encrypts the instances' volumes.")
    tags: dict[Annotated[str, AfterValidator(_check_tag_name)], Annotated[str, AfterValidator(_check_tag)]] = Field(
        default_factory=dict, max_length=40, description="Tags of all that is created."
    )
    smoke_test: Annotated[SmokeTest | None, BeforeValidator(_read_smoke_test)] = Field(
        default=SmokeTest(),
        description="The request that has to be answered; that of the releases when left out, none when false.",
    )
    recommendation_job: RecommendationJob | None = Field(
        default=None, description="The job of `plansmith sagemaker recommend`; a default one when left out."
    )

    @property
    def all_variants(self) -> tuple[VariantSpec, ...]:
        """The production variants, then the shadow variants."""
        return (*self.variants, *self.shadow_variants)

    @property
    def account(self) -> str:
        """The account of the execution role, which is also the endpoint's."""
        return self.role.split(":")[4]

    @property
    def bucket_name(self) -> str:
        """The bucket of the archives."""
        return self.bucket.removeprefix("s3://").partition("/")[0]

    @property
    def archive_prefix(self) -> str:
        """The key prefix of the endpoint's archives; ends in a slash."""
        prefix = self.bucket.removeprefix("s3://").partition("/")[2]
        return f"{prefix}/{self.name}/" if prefix else f"{self.name}/"

    def arn(self, kind: str, name: str) -> str:
        """Return the ARN of a SageMaker resource, in which names are lowercase.

        Args:
            kind: such as endpoint-config.
            name: the resource's.
        """
        return f"arn:{partition_of(self.region)}:sagemaker:{self.region}:{self.account}:{kind}/{name.lower()}"


def find_contradictions(spec: EndpointSpec) -> Iterator[Problem]:
    """Return conflicts between values of a spec that are each valid alone."""
    partition = spec.role.split(":")[1]
    if partition != partition_of(spec.region):
        yield make_problem(("role",), f"is of {partition}, and {spec.region} is in {partition_of(spec.region)}")
    if spec.shadow_variants and len(spec.variants) > 1:
        yield make_problem(("shadow_variants",), "shadow one production variant, and there are several")
    if not any(variant.weight for variant in spec.variants):
        yield make_problem(("variants",), "all weights are 0, so that no variant gets requests")
    if spec.recommendation_job:
        yield from find_job_contradictions(spec.recommendation_job, spec.variants)
    names: set[str] = set()
    for kind in _KINDS:
        for row, variant in enumerate(getattr(spec, kind)):
            keys = (kind, str(row))
            if variant.name in names:
                yield make_problem((*keys, "name"), f"{variant.name!r} is the name of another variant")
            names.add(variant.name)
            yield from _model_problems(spec, variant, keys)
            yield from _scaling_problems(variant, keys)
            yield from _image_problems(spec, variant, keys)
            yield from _volume_problems(spec, variant, keys)


def find_unknown_region(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report a region without SageMaker's Triton containers, unless every variant sets its image.

    Args:
        values: of the file, right or not, so that it is told with all else.
    """
    region = values.get("region")
    if not isinstance(region, str) or not is_region(region) or region in regions():
        return
    rows = [row for kind in _KINDS if isinstance(values.get(kind), list) for row in values[kind]]
    images = [row.get("image") for row in rows if isinstance(row, Mapping)]
    if images and all(isinstance(image, Mapping) and {"uri", "account"} & set(image) for image in images):
        return
    near = nearest_regions(region)
    meant = f"did you mean {' or '.join(near)}? Else name" if near else "name"
    yield make_problem(("region",), f"is not known to have SageMaker's Triton containers; {meant} image.account")


def make_problem(keys: tuple[str, ...], message: str) -> Problem:
    """Return a problem of the value under a path of keys."""
    return Problem(keys, "wrong", f"{'.'.join(keys)!r}: {message}")


def _model_problems(spec: EndpointSpec, variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    """Yield model problems: a container with one archive serves one of its models, and one version of each."""
    names = [model.partition("@")[0] for model in variant.models]
    default = variant.environment.default_model
    if len(set(variant.models)) < len(variant.models):
        yield make_problem((*keys, "models"), "one is named twice")
    if variant.model_package_group and (len(variant.models) > 1 or "@" in variant.models[0]):
        yield make_problem((*keys, "models"), "name one model without its version, which model_package_group tells")
    if variant.multi_model:
        if default:
            yield make_problem(
                (*keys, "environment", "default_model"), "has no meaning where each request names its model"
            )
        if spec.shadow_variants:
            # docs.aws.amazon.com/sagemaker/latest/dg/shadow-tests-exclusions.html
            yield make_problem((*keys, "multi_model"), "does not go with shadow variants")
        return
    if variant.copies > 1:
        yield make_problem((*keys, "copies"), "are for multi-model variants: write multi_model: true")
    if len(set(names)) < len(set(variant.models)):
        yield make_problem(
            (*keys, "models"), "a variant serves one version of a model, unless it says multi_model: true"
        )
    elif len(set(names)) > 1 and not default:
        listed = ", ".join(names)
        yield make_problem(
            (*keys, "models"),
            f"{listed} share a container that serves one: name it in environment.default_model, or write"
            " multi_model: true",
        )
    if default and default not in names:
        yield make_problem(
            (*keys, "environment", "default_model"), f"{default!r} is none of the models {', '.join(names)}"
        )


def _scaling_problems(variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    scaling = variant.auto_scaling
    if scaling is None:
        return
    if keys[0] == "shadow_variants":
        yield make_problem((*keys, "auto_scaling"), "is not for shadow variants")
    if not scaling.min_instances <= variant.instance_count <= scaling.max_instances:
        limits = f"{scaling.min_instances} to {scaling.max_instances}"
        yield make_problem(
            (*keys, "instance_count"), f"{variant.instance_count} is not among the {limits} of auto_scaling"
        )
    instance = known_instance(variant.instance_type)
    if scaling.gpu_utilization and not instance.gpus:
        yield make_problem((*keys, "auto_scaling", "gpu_utilization"), f"{instance.name} has no GPU")


def _volume_problems(spec: EndpointSpec, variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    instance = known_instance(variant.instance_type)
    if instance.local_storage and spec.kms_key:
        yield make_problem(("kms_key",), f"{instance.name} has disks of its own, for which SageMaker takes no key")
    if instance.local_storage and variant.volume_gb:
        yield make_problem((*keys, "volume_gb"), f"{instance.name} has disks of its own, whose size is fixed")
    if variant.inference_ami and not instance.gpus:
        yield make_problem((*keys, "inference_ami"), f"is for instances with GPUs, and {instance.name} has none")


def _image_problems(spec: EndpointSpec, variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    image = variant.image
    if image.uri:
        # docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
        ecr = ecr_image(image.uri)
        if ecr is None:
            yield make_problem((*keys, "image", "uri"), "is no image in Amazon ECR, from which SageMaker pulls")
        elif ecr[1] != spec.region:
            yield make_problem((*keys, "image", "uri"), f"is in {ecr[1]}, and SageMaker pulls from {spec.region} only")
    elif image.version:
        device: Device = "gpu" if known_instance(variant.instance_type).gpus else "cpu"
        try:
            image_uri(container_target(image.version, device), device, spec.region, account=image.account)
        except UsageError as error:
            yield make_problem((*keys, "image", "version"), f"{error.message} ({error.remedy})")
