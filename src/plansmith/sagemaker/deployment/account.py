"""AWS services that an endpoint needs, in one region and with the caller's credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, UsageError
from plansmith.records.destination import Location
from plansmith.sagemaker.endpoint.desired import ArchiveUpload, is_archive
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.registry import plan_upload, upload_archive
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.backend.s3 import S3Objects
from plansmith.system.aws.bucket import Bucket, ExpectedError
from plansmith.system.aws.s3_errors import DENIED, refusal_in
from plansmith.system.aws.service import AwsService, Call, require_valid

SAGEMAKER = "sagemaker"
_SUBJECTS = {
    SAGEMAKER: "SageMaker",
    "application-autoscaling": "Application Auto Scaling",
    "iam": "IAM",
    "sts": "STS",
}
_MISSING_CODES = {"ResourceNotFound", "ObjectNotFoundException", "NoSuchEntity"}
_MISSING = re.compile(r"could not find|does not exist|no scalable target|cannot find", re.IGNORECASE)
_TAKEN = re.compile(r"already exist|in-progress endpoint", re.IGNORECASE)
_IN_USE = "ResourceInUse"
_UNCERTAIN_CODES = {"InternalError", "InternalFailure", "ServiceUnavailable"}
_NO_BUCKET, _CLOSED = "404", "403"  # the answers to HEAD have no body that says more


class Account:
    """AWS services of an endpoint; a context manager. Makes no call before one is needed.

    Args:
        spec: the endpoint.
    """

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self.region = spec.region
        self._services = {name: _service(name, spec) for name in _SUBJECTS}
        self._folders: dict[str, S3Objects] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close all connections."""
        for service in self._services.values():
            service.close()

    def call(self, operation: str, service: str = SAGEMAKER, **parameters: Any) -> Any:
        """Call a service and return its response."""
        return self._services[service].call(operation, **parameters)

    def find(self, operation: str, service: str = SAGEMAKER, **parameters: Any) -> Any | None:
        """Call a service and return its response; None if the named resource does not exist."""
        try:
            return self.call(operation, service, **parameters)
        except (UsageError, EnvironmentFault) as error:
            if is_missing(error):
                return None
            raise

    def pages(self, operation: str, field: str, service: str = SAGEMAKER, **parameters: Any) -> Iterator[Any]:
        """Return all items that a service lists under a field, over all pages."""
        return self._services[service].pages(operation, field, **parameters)

    def tags(self, arn: str) -> dict[str, str]:
        """Return the tags of a SageMaker resource."""
        return {tag["Key"]: tag["Value"] for tag in self.pages("list_tags", "Tags", ResourceArn=arn)}

    def execute(self, call: Call) -> None:
        """Send one request of a plan.

        Raises:
            EnvironmentFault: it is not allowed, exceeds a quota, or AWS cannot be asked.
            UsageError: AWS refuses it.
        """
        require_valid(call)
        self.call(call.operation, call.service, **call.parameters)

    def is_uploaded(self, upload: ArchiveUpload) -> bool:
        """Whether an archive is in the bucket.

        Raises:
            RepositoryError: another content has its key, or the bucket cannot be read.
        """
        return not plan_upload(self._folder(upload.folder), upload.archive).sent

    def upload(self, upload: ArchiveUpload, progress: Moved = untold) -> None:
        """Upload an archive to the bucket, unless it exists.

        Args:
            upload: the archive, which was written.
            progress: told how many more bytes are on their way.
        """
        upload_archive(self._folder(upload.folder), upload.archive, progress)

    def put(self, folder: str, name: str, content: bytes) -> None:
        """Write a small object below the endpoint's prefix.

        Raises:
            RepositoryError: the bucket does not take it.
        """
        self._folder(folder).put(name, content)

    def archive_keys(self) -> list[str]:
        """The keys of all archives of the endpoint, below the endpoint's prefix."""
        return [entry.key for entry in self._folder("").below("") if is_archive(entry.key)]

    def remove_archive(self, key: str) -> None:
        """Delete an archive.

        Args:
            key: below the endpoint's prefix.
        """
        self._folder("").remove([key])

    def require_buckets(self) -> None:
        """Require that the buckets of archives and of captured data exist in the endpoint's region.

        That of captured data may be closed to the caller: only the execution role writes to it.

        Raises:
            RepositoryError: there is no such bucket, it is in another region, or that of archives cannot be read.
        """
        self._require_bucket(self._folder("").bucket, "reads archives of its own region only")
        capture = self.spec.data_capture
        if capture:
            bucket = S3Objects(Location(to=capture.to, region=self.region), Path()).bucket
            self._require_bucket(bucket, "captures data in its own region only", closed=(_CLOSED, DENIED))

    def _require_bucket(self, bucket: Bucket, rule: str, closed: tuple[str, ...] = ()) -> None:
        """Check one bucket; access-denied responses are accepted."""
        try:
            answer = bucket.call("head_bucket", answers=(_NO_BUCKET, *closed))
        except ExpectedError as answered:
            if answered.code in closed:
                return
            raise RepositoryError(
                f"there is no bucket {bucket.name!r}",
                remedy=f"name another, or create it: aws s3 mb s3://{bucket.name} --region {self.region}",
            ) from answered
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        region = str(answer.get("BucketRegion") or headers.get("x-amz-bucket-region", ""))
        if region and region != self.region:
            raise RepositoryError(
                f"the bucket {bucket.name} is in {region}, and the endpoint in {self.region}",
                remedy=f"name a bucket in {self.region}: SageMaker {rule}",
            )

    def require_role(self) -> None:
        """Require that the execution role exists in the caller's account and trusts SageMaker.

        Existence and trust are not checked where the caller may not read the role (`iam:GetRole`), and nothing where
        STS cannot be reached.

        Raises:
            UsageError: it is not.
        """
        role = self.spec.role
        try:
            caller = str(self.call("get_caller_identity", "sts")["Account"])
        except EnvironmentFault as error:
            if error.transient:  # STS is not reachable from every network
                return
            raise
        if caller != self.spec.account:
            raise UsageError(
                f"the role {role} is of another account than these credentials, which are of {caller}",
                remedy="name a role of that account, or use other credentials: AWS_PROFILE",
            )
        try:
            description = self.find("get_role", "iam", RoleName=role.rpartition("/")[2])
        except EnvironmentFault:  # most likely not allowed; creating the model says the rest
            return
        if description is None:
            raise UsageError(
                f"there is no role {role}",
                remedy="create it: plansmith sagemaker policy SPEC.yaml prints its policies (trust, execution)",
            )
        if "sagemaker." not in str(description["Role"].get("AssumeRolePolicyDocument", "sagemaker.")):
            raise UsageError(
                f"the role {role} cannot be assumed by SageMaker",
                remedy="give it this trust policy: plansmith sagemaker policy SPEC.yaml --only trust",
            )

    def _folder(self, name: str) -> S3Objects:
        """Describe a folder of archives; the common folder for an empty name."""
        if name not in self._folders:
            to = f"s3://{self.spec.bucket_name}/{self.spec.archive_prefix}{name}".rstrip("/")
            key = self.spec.bucket_kms_key
            place = Location(to=to, region=self.region, encryption="aws:kms" if key else "", kms_key=key)
            self._folders[name] = S3Objects(place, Path())
        return self._folders[name]


def is_missing(error: PlansmithError) -> bool:
    """Whether AWS refused because a named resource does not exist."""
    refusal = refusal_in(error.__cause__) if isinstance(error.__cause__, Exception) else None
    if refusal is None:
        return False
    return refusal.code.rpartition(".")[2] in _MISSING_CODES or bool(_MISSING.search(refusal.message))


def is_taken(error: PlansmithError) -> bool:
    """Whether AWS refused because the resource exists, or the endpoint is already changing."""
    refusal = refusal_in(error.__cause__) if isinstance(error.__cause__, Exception) else None
    return refusal is not None and (refusal.code == _IN_USE or bool(_TAKEN.search(refusal.message)))


def is_uncertain(error: PlansmithError) -> bool:
    """Whether a request may have been executed, as no response rules it out."""
    if not (isinstance(error, EnvironmentFault) and error.transient):
        return False
    refusal = refusal_in(error.__cause__) if isinstance(error.__cause__, Exception) else None
    return refusal is None or refusal.code.rpartition(".")[2] in _UNCERTAIN_CODES


def _service(name: str, spec: EndpointSpec) -> AwsService:
    return AwsService(
        name,
        f"{_SUBJECTS[name]} in {spec.region}",
        region=spec.region,
        settings="the region and the network",
        remedy=f"see the current state: aws sagemaker describe-endpoint --endpoint-name {spec.name}"
        f" --region {spec.region}",
        permissions="plansmith sagemaker policy SPEC.yaml prints all that is needed",
    )
