"""SageMaker Model Registry: a release is a model package, a version of its group.

The fields are those of docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateModelPackage.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from plansmith.errors import RepositoryError, UsageError
from plansmith.records.model import Record
from plansmith.records.release import Manifest
from plansmith.sagemaker.archives import SUFFIX, Archive
from plansmith.sagemaker.endpoint.checks import serving_instances
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.backend.s3 import S3Objects
from plansmith.system.aws.service import AwsService, Call, require_valid
from plansmith.triton.repository.repository import ModelRepository

ApprovalStatus = Literal["Approved", "Rejected", "PendingManualApproval"]

RELEASE = "plansmith.release"
DIGEST = "plansmith.digest"
"""Entries of a package's metadata: MODEL@VERSION, and the digest of that release."""

_SERVICE = "sagemaker"
_PENDING: ApprovalStatus = "PendingManualApproval"
_CONTENT_TYPES = ("application/json", "application/octet-stream", "application/vnd.sagemaker-triton.binary+json")
_METRICS_SUFFIX = ".validation.json"
_GROUP = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
# Of CustomerMetadataProperties: what a value may hold, and how much of it.
_FOREIGN = re.compile(r"[^\w .:/=+\-@]")
_LONGEST_VALUE = 256


class Registration(Record):
    """Registration of a release as a version of a group, with the requests for it.

    Attributes:
        group: the model package group.
        release: MODEL@VERSION.
        status: whether it may be deployed.
        arn: of the package; empty before it is created.
        image: the container that serves it.
        model_data_url: its archive.
        metrics_url: the report of its gate.
        calls: what has to be asked of SageMaker; empty where it is registered so already.
    """

    group: str
    release: str
    status: ApprovalStatus
    arn: str
    image: str
    model_data_url: str
    metrics_url: str
    calls: tuple[Call, ...]


class ApprovedRelease(Record):
    """Newest approved version of a group.

    Attributes:
        arn: of the package.
        release: MODEL@VERSION.
        release_digest: of the release.
    """

    arn: str
    release: str
    release_digest: str


class ModelRegistry:
    """SageMaker Model Registry of a region; a context manager.

    Args:
        region: that of the environment where it is empty.
    """

    def __init__(self, region: str = "") -> None:
        self._service = AwsService(
            _SERVICE,
            "the SageMaker Model Registry" + (f" in {region}" if region else ""),
            region=region,
            settings="the region and the network",
            remedy="see what is there: aws sagemaker list-model-packages --model-package-group-name GROUP",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close all connections."""
        self._service.close()

    def has_group(self, group: str) -> bool:
        """Whether a group exists.

        Raises:
            EnvironmentFault: SageMaker cannot be asked.
        """
        listed = self._service.pages("list_model_package_groups", "ModelPackageGroupSummaryList", NameContains=group)
        return any(entry["ModelPackageGroupName"] == group for entry in listed)

    def packages(self, group: str, **filters: str) -> Iterator[dict[str, Any]]:
        """Return the packages of a group in SageMaker's list, newest first."""
        order = {"SortBy": "CreationTime", "SortOrder": "Descending"}
        return self._service.pages(
            "list_model_packages", "ModelPackageSummaryList", ModelPackageGroupName=group, **order, **filters
        )

    def describe(self, arn: str) -> dict[str, Any]:
        """Return SageMaker's full description of a package."""
        package: dict[str, Any] = self._service.call("describe_model_package", ModelPackageName=arn)
        return package

    def execute(self, call: Call) -> dict[str, Any]:
        """Send one request of a registration.

        Raises:
            EnvironmentFault: it is not allowed, or SageMaker cannot be asked.
            UsageError: SageMaker refuses it.
        """
        answer: dict[str, Any] = self._service.call(call.operation, **call.parameters)
        return answer


@dataclass(frozen=True)
class PackageContent:
    """Content of a model package.

    Attributes:
        manifest: of the release that the endpoint serves.
        archive: with its digest.
        image: the container that serves it.
        folder: s3://bucket/prefix, which has the archive, and beside it the report of the gate.
    """

    manifest: Manifest
    archive: Archive
    image: str
    folder: str

    @property
    def release(self) -> str:
        """The release, as MODEL@VERSION."""
        return f"{self.manifest.name}@{self.manifest.version}"

    @property
    def model_data_url(self) -> str:
        """The URL of the archive."""
        return f"{self.folder}/{Path(self.archive.file).name}"

    @property
    def metrics_name(self) -> str:
        """The file name of the gate's report in the folder."""
        return Path(self.archive.file).name.removesuffix(SUFFIX) + _METRICS_SUFFIX

    @property
    def metrics(self) -> bytes:
        """The gate's report."""
        return json.dumps(self.manifest.validation.model_dump(mode="json"), indent=1).encode()

    @property
    def description(self) -> str:
        """The description that identifies a package; a list of packages shows nothing more of it."""
        return f"{self.release} for {self.image.rpartition('/')[2]}, archive {self.archive.digest[:16]}"


def plan_registration(
    registry: ModelRegistry, group: str, status: ApprovalStatus | None, content: PackageContent
) -> Registration:
    """Return the requests that register a release as a version of a group; changes nothing.

    Args:
        registry: the registry.
        group: the group, which is created where there is none.
        status: of the package; where it is None, that which it has, or pending for a new one.
        content: of the package.

    Raises:
        UsageError: the group cannot have that name.
        EnvironmentFault: SageMaker cannot be asked.
    """
    if not _GROUP.fullmatch(group):
        raise UsageError(
            f"a group cannot be called {group!r}",
            remedy="use at most 63 letters, digits and -, with a letter or digit at both ends",
        )
    calls: list[Call] = []
    present: dict[str, Any] | None = None
    if registry.has_group(group):
        packages = registry.packages(group)
        present = next(
            (package for package in packages if package.get("ModelPackageDescription") == content.description), None
        )
    else:
        calls.append(_group_call(group, content))
    current: ApprovalStatus = present["ModelApprovalStatus"] if present else _PENDING
    if present is None:
        calls.append(_package_call(group, status or current, content))
    elif status not in {None, current}:
        arn = present["ModelPackageArn"]
        # With its metadata: nothing says whether what is left out of an update stays.
        metadata = registry.describe(arn).get("CustomerMetadataProperties") or _metadata(content)
        update = {"ModelPackageArn": arn, "ModelApprovalStatus": status, "CustomerMetadataProperties": metadata}
        calls.append(Call(service=_SERVICE, operation="update_model_package", parameters=update))
    for call in calls:
        require_valid(call)
    return Registration(
        group=group,
        release=content.release,
        status=status or current,
        arn=present["ModelPackageArn"] if present else "",
        image=content.image,
        model_data_url=content.model_data_url,
        metrics_url=f"{content.folder}/{content.metrics_name}",
        calls=tuple(calls),
    )


def register(registry: ModelRegistry, objects: S3Objects, content: PackageContent, plan: Registration) -> Registration:
    """Execute a registration whose archive is in S3.

    Args:
        registry: the registry.
        objects: the folder of the archive, which takes the gate's report.
        content: of the package.
        plan: of `plan_registration`.

    Returns:
        The registration with the package's ARN.

    Raises:
        EnvironmentFault: it is not allowed, beyond a quota, or AWS cannot be asked.
        RepositoryError: S3 refuses the report.
        UsageError: SageMaker refuses the package.
    """
    arn = plan.arn
    if not arn:
        objects.put(content.metrics_name, content.metrics)
    for call in plan.calls:
        arn = registry.execute(call).get("ModelPackageArn", arn)
    return plan.model_copy(update={"arn": arn})


def approved_release(registry: ModelRegistry, group: str, model: str) -> ApprovedRelease:
    """Return the newest approved package of a group that was registered from a release of the model.

    Args:
        registry: the registry.
        group: the group.
        model: of which it has to be.

    Raises:
        RepositoryError: there is none.
        EnvironmentFault: SageMaker cannot be asked.
    """
    for package in registry.packages(group, ModelApprovalStatus="Approved") if registry.has_group(group) else ():
        metadata = registry.describe(package["ModelPackageArn"]).get("CustomerMetadataProperties") or {}
        release = metadata.get(RELEASE, "")
        if release.partition("@")[0] == model and DIGEST in metadata:
            return ApprovedRelease(arn=package["ModelPackageArn"], release=release, release_digest=metadata[DIGEST])
    command = f"plansmith sagemaker register {model} --group {group} --upload s3://BUCKET/PREFIX --status approved"
    raise RepositoryError(
        f"the model package group {group} has no approved release of {model}",
        remedy=f"approve one in SageMaker Studio, or: {command}",
    )


def with_approved_releases(spec: EndpointSpec) -> EndpointSpec:
    """Return the endpoint with each variant's newest approved release, where it names a model package group.

    Args:
        spec: the endpoint.

    Raises:
        RepositoryError: nothing was approved, or the release that was is not in the repository, or is another there.
        EnvironmentFault: SageMaker cannot be asked.
    """
    if not any(variant.model_package_group for variant in spec.all_variants):
        return spec
    repository = ModelRepository(Path(spec.repository))

    def approved(variant: VariantSpec) -> VariantSpec:
        if not variant.model_package_group:
            return variant
        approval = approved_release(registry, variant.model_package_group, variant.models[0])
        if repository.manifest(*repository.find(approval.release)).release_digest != approval.release_digest:
            raise RepositoryError(
                f"{approval.release} of {repository.root} is another release than"
                f" the one that was approved: {approval.arn}",
                remedy="name the repository that it was registered from; or register this one, and approve it",
            )
        return variant.model_copy(update={"models": (approval.release,)})

    with ModelRegistry(spec.region) as registry:
        changes = {kind: tuple(map(approved, getattr(spec, kind))) for kind in ("variants", "shadow_variants")}
    return spec.model_copy(update=changes)


def _group_call(group: str, content: PackageContent) -> Call:
    parameters = {
        "ModelPackageGroupName": group,
        "ModelPackageGroupDescription": f"Releases of {content.manifest.name}",
    }
    return Call(service=_SERVICE, operation="create_model_package_group", parameters=parameters)


def _package_call(group: str, status: ApprovalStatus, content: PackageContent) -> Call:
    archive = content.archive
    metrics = {"ContentType": _CONTENT_TYPES[0], "S3Uri": f"{content.folder}/{content.metrics_name}"}
    container = {"Image": content.image, "ModelDataUrl": content.model_data_url, "Environment": archive.environment}
    return Call(
        service=_SERVICE,
        operation="create_model_package",
        parameters={
            "ModelPackageGroupName": group,
            "ModelPackageDescription": content.description,
            "ModelApprovalStatus": status,
            "InferenceSpecification": {
                "Containers": [container],
                "SupportedContentTypes": list(_CONTENT_TYPES),
                "SupportedResponseMIMETypes": list(_CONTENT_TYPES),
                "SupportedRealtimeInferenceInstanceTypes": serving_instances(archive),
            },
            "ModelMetrics": {"ModelQuality": {"Statistics": metrics}},
            "CustomerMetadataProperties": _metadata(content),
        },
    )


def _metadata(content: PackageContent) -> dict[str, str]:
    """Return the metadata that a reviewer needs to approve a release."""
    manifest, archive = content.manifest, content.archive
    values = {
        RELEASE: content.release,
        DIGEST: manifest.release_digest,
        "plansmith.archive": archive.digest,
        "plansmith.engine": manifest.engine.kind,
        "plansmith.precision": manifest.engine.precision,
        "plansmith.target": archive.target,
        "plansmith.gpus": " ".join(archive.compute_capabilities),
        "plansmith.verdict": manifest.validation.verdict,
    }
    return {name: _FOREIGN.sub("-", value)[:_LONGEST_VALUE] for name, value in values.items() if value}


class Upload(Record):
    """Archive upload to S3.

    Attributes:
        uri: the object, which ModelDataUrl of a SageMaker model names.
        sent: whether it was sent; or was there already.
    """

    uri: str
    sent: bool


def plan_upload(objects: S3Objects, archive: Archive) -> Upload:
    """Plan the work of `upload_archive`; uploads nothing.

    Args:
        objects: the prefix that takes it.
        archive: the archive; of one that was only planned, the size alone is compared with what is there.

    Raises:
        RepositoryError: another content has its name.
    """
    key = Path(archive.file).name
    existing = objects.find(key)
    if existing is not None:
        is_same = existing.bytes == archive.bytes
        if is_same and archive.digest:
            is_same = (existing.sha256 or objects.sha256(key)) == archive.digest
        if not is_same:
            raise RepositoryError(
                f"{objects.place}/{key} is there already, with other content, and is not overwritten: endpoints keep"
                " what they loaded",
                remedy="choose another --upload (in an endpoint's file: another bucket), or remove it",
            )
    return Upload(uri=f"{objects.place}/{key}", sent=existing is None)


def upload_archive(objects: S3Objects, archive: Archive, progress: Moved = untold) -> Upload:
    """Upload an archive to S3 unless it exists; resumes an interrupted upload.

    Args:
        objects: the prefix that takes it, under its file's name.
        archive: the archive, which was written.
        progress: told how many more bytes are on their way; called by several threads.

    Raises:
        RepositoryError: another content has its name, or S3 refuses it.
        EnvironmentFault: S3 cannot be reached.
    """
    upload = plan_upload(objects, archive)
    if upload.sent:
        path = Path(archive.file)
        objects.send(path, path.name, archive.digest, progress)
    return upload
