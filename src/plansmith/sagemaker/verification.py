"""Endpoint verification: whether it serves what was deployed, without failures and within limits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.records.model import Record
from plansmith.report.numbers import amount
from plansmith.sagemaker.description import EndpointDescription, VariantDescription, describe_endpoint
from plansmith.sagemaker.metrics.cloudwatch import time_range
from plansmith.sagemaker.metrics.page import format_total
from plansmith.sagemaker.metrics.values import EndpointMetrics, VariantMetrics, read_metrics
from plansmith.system.aws.service import AwsService

_IN_SERVICE = "InService"
_MAX_AGE = timedelta(days=454)
_SHORTEST_RANGE = timedelta(minutes=1)


class EndpointLimits(Record):
    """Endpoint limits; None for no limit.

    Attributes:
        error_rate: the part of the requests that may fail, from 0 to 1.
        p99_ms: of the container's latency; CloudWatch has no percentiles of the total one.
    """

    error_rate: float | None = None
    p99_ms: float | None = None

    @property
    def is_any_set(self) -> bool:
        """Whether any limit is set."""
        return self.error_rate is not None or self.p99_ms is not None


class EndpointFinding(Record):
    """Finding on an endpoint; `variant` is empty if it concerns the whole endpoint."""

    variant: str
    problem: str


class EndpointVerification(Record):
    """Results of an endpoint verification.

    Attributes:
        endpoint: as it runs.
        metrics: since it was changed last, or as long as was asked for.
        limits: that it should keep.
        findings: what is not as it should be.
        notes: what could not be checked.
    """

    endpoint: EndpointDescription
    metrics: EndpointMetrics
    limits: EndpointLimits
    findings: tuple[EndpointFinding, ...]
    notes: tuple[str, ...]

    def error(self) -> PlansmithError | None:
        """Return the error to exit with; None if all is well."""
        if not self.findings:
            return None
        first = self.findings[0]
        problem = f"{first.variant}: {first.problem}" if first.variant else first.problem
        more = f", and {len(self.findings) - 1} more" if len(self.findings) > 1 else ""
        name, region = self.endpoint.name, self.endpoint.region
        return ServedCheckError(
            f"the endpoint {name} does not serve as it should: {problem}{more}",
            remedy=f"see its log: aws logs tail /aws/sagemaker/Endpoints/{name} --region {region}; and its metrics:"
            f" plansmith sagemaker metrics {name} --region {region}",
            step="verify",
        )


def verify_endpoint(
    endpoint: str, region: str, limits: EndpointLimits, since: datetime | None = None
) -> EndpointVerification:
    """Check an endpoint's status, the releases it was deployed from, and its metrics.

    Args:
        endpoint: its name.
        region: where it is.
        limits: that it should keep; requests that end with 5XX are a finding in any case.
        since: from when on its metrics count; since it was changed last where it is None.

    Raises:
        UsageError: there is no such endpoint.
        EnvironmentFault: SageMaker or CloudWatch cannot be asked.
    """
    now = datetime.now(UTC)
    description = describe_endpoint(endpoint, region, with_models=True)
    start = min(max(since or description.changed, now - _MAX_AGE), now - _SHORTEST_RANGE)
    metrics = read_metrics(description, time_range(start, now, now), now=now)
    findings = [*_endpoint_findings(description)]
    notes: list[str] = []
    s3 = AwsService(
        "s3",
        f"S3 in {region}",
        region=region,
        settings="the region and the network",
        remedy="see what its models are made of: aws sagemaker describe-model",
    )
    try:
        for variant, measured in zip(description.variants, metrics.variants, strict=True):
            problems = [*_variant_problems(variant), *_metric_problems(measured, metrics, limits)]
            try:
                problems += _archive_problems(s3, variant)
            except EnvironmentFault as error:
                notes.append(f"{variant.name}: whether its archive is there could not be seen: {error.message}")
            findings += [EndpointFinding(variant=variant.name, problem=problem) for problem in problems]
    finally:
        s3.close()
    return EndpointVerification(
        endpoint=description, metrics=metrics, limits=limits, findings=tuple(findings), notes=tuple(notes)
    )


def _endpoint_findings(endpoint: EndpointDescription) -> Iterator[EndpointFinding]:
    if endpoint.status != _IN_SERVICE:
        reason = f": {endpoint.failure}" if endpoint.failure else ""
        yield EndpointFinding(variant="", problem=f"it is {endpoint.status} and not {_IN_SERVICE}{reason}")
    for name in endpoint.missing_variants:
        yield EndpointFinding(variant=name, problem="its configuration has it, and it does not run")


def _variant_problems(variant: VariantDescription) -> Iterator[str]:
    """Yield what differs in a running variant from its target state, or from what was deployed."""
    if variant.weight is not None:
        if variant.desired_weight not in {None, variant.weight}:
            yield f"its weight is {variant.weight:g}, and is changing to {variant.desired_weight:g}"
        elif variant.configured_weight not in {None, variant.weight}:
            yield f"its weight is {variant.weight:g}, and it was deployed with {variant.configured_weight:g}"
    if variant.instances is not None and variant.instances < (variant.desired_instances or 0):
        yield f"{variant.instances} of {variant.desired_instances} instances run"
    if variant.model is None:
        if variant.model_name:
            yield f"SageMaker has no model {variant.model_name} any more, so that no instance can start"
    elif variant.images and variant.model.image not in variant.images:
        yield f"its instances run {', '.join(variant.images)}, and its model has {variant.model.image}"


def _archive_problems(s3: AwsService, variant: VariantDescription) -> list[str]:
    """Yield a problem if the archive that a new instance would download is gone, or all of a prefix.

    Raises:
        EnvironmentFault: S3 cannot be asked, or does not allow it.
    """
    model = variant.model
    if model is None or not model.data:
        return []
    location = urlsplit(model.data)
    key = location.path.removeprefix("/")
    try:
        page = s3.call("list_objects_v2", Bucket=location.netloc, Prefix=key, MaxKeys=1)
    except (UsageError, EnvironmentFault) as error:
        if "NoSuchBucket" in error.message:
            return [f"{model.data} is gone: there is no such bucket"]
        raise
    keys = [row["Key"] for row in page.get("Contents", [])]
    is_prefix = model.multi_model or key.endswith("/")
    if keys and (is_prefix or keys == [key]):
        return []
    return [f"{model.data} is gone, so that no instance can start"]


def _metric_problems(variant: VariantMetrics, metrics: EndpointMetrics, limits: EndpointLimits) -> Iterator[str]:
    """Yield failed requests, and limits that were exceeded or have no data to compare with."""
    if reason := metrics.reason_for_no_requests(variant):
        if limits.is_any_set:
            yield f"there is nothing to compare with a limit: {reason}"
        return
    if failed := _failed_requests(variant):
        requests = format_total(variant.statistic("Invocations"))
        yield f"{amount(failed, 'count')} of {requests} requests ended with 5XX or without an answer"
    rate = variant.error_rate or 0.0
    if limits.error_rate is not None and rate > limits.error_rate:
        yield f"{amount(100 * rate, 'percent')} of its requests failed, and {100 * limits.error_rate:g} % may"
    if limits.p99_ms is not None:
        p99 = variant.statistic("ModelLatency", "p99")
        if p99.total is None:
            yield "CloudWatch has no p99 of the container's latency to compare with the limit"
        elif p99.total > limits.p99_ms:
            yield f"the p99 of the container's latency is {format_total(p99)}, and {limits.p99_ms:g} ms is the limit"


def _failed_requests(variant: VariantMetrics) -> float:
    """Return the requests that the endpoint failed: 5XX, and model errors beyond those of 4XX, such as timeouts."""
    server, client, model = (
        variant.total(name) or 0.0 for name in ("Invocation5XXErrors", "Invocation4XXErrors", "InvocationModelErrors")
    )
    return max(server, model - client)
