"""An endpoint as a person describes it in one YAML file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from plansmith.records.destination import wrong_place
from plansmith.records.fields import Count, Switch, matching
from plansmith.records.model import Record
from plansmith.sagemaker.endpoint.images import is_region, nearest_regions, partition_of
from plansmith.sagemaker.endpoint.recommendation_job import RecommendationJob
from plansmith.sagemaker.endpoint.variant import Name, VariantSpec

# Patterns of docs.aws.amazon.com/sagemaker/latest/APIReference: RoleArn, KmsKeyId, Tag, VpcConfig.
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@/_-]+")
_KEY = re.compile(r"[a-zA-Z0-9:/_-]+")
_TAG = re.compile(r"[\w .:/=+@-]*")
_SECURITY_GROUP, _SUBNET = re.compile(r"sg-[0-9a-z]+"), re.compile(r"subnet-[0-9a-z]+")
_MAX_VARIANTS = 10
_OWN_TAGS = "plansmith:"


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
    """False turns it off; true, or nothing, is the default."""
    return None if value is False else {} if value is True or value is None else value


Bucket = Annotated[str, AfterValidator(_check_bucket)]
KmsKey = Annotated[str, matching(_KEY, "must be a key of KMS: its ID, its ARN or alias/NAME", or_empty=True)]


class DataCapture(Record):
    """Requests and answers that SageMaker writes to S3."""

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
    """The network of the containers."""

    subnets: tuple[Annotated[str, matching(_SUBNET, "is no subnet, such as subnet-0a1b2c3d")], ...] = Field(
        min_length=1, max_length=16
    )
    security_groups: tuple[
        Annotated[str, matching(_SECURITY_GROUP, "is no security group, such as sg-0a1b2c3d")], ...
    ] = Field(min_length=1, max_length=5)


class SmokeTest(Record):
    """A request that each production variant has to answer before a deployment counts as done."""

    body: str = Field(
        default="",
        description="File with its body, relative to the spec; the releases' requests when empty.",
    )
    content_type: str = Field(default="application/json", description="Content type of the body.")


class EndpointSpec(Record):
    """An endpoint of SageMaker."""

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
        """The account of the execution role, which is the endpoint's."""
        return self.role.split(":")[4]

    @property
    def bucket_name(self) -> str:
        """The bucket of the archives."""
        return self.bucket.removeprefix("s3://").partition("/")[0]

    @property
    def archive_prefix(self) -> str:
        """The start of the keys of the endpoint's archives; ends in a slash."""
        prefix = self.bucket.removeprefix("s3://").partition("/")[2]
        return f"{prefix}/{self.name}/" if prefix else f"{self.name}/"

    def arn(self, kind: str, name: str) -> str:
        """The ARN of a resource of SageMaker, in which names are in lower case.

        Args:
            kind: such as endpoint-config.
            name: the resource's.
        """
        return f"arn:{partition_of(self.region)}:sagemaker:{self.region}:{self.account}:{kind}/{name.lower()}"
