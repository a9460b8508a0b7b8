"""The sample requests of a job of Inference Recommender: an archive of bodies, which all have one content type."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from plansmith.errors import UsageError
from plansmith.formatting import format_bytes
from plansmith.records.model import Record
from plansmith.sagemaker.endpoint.recommendation_job import RecommendationJob
from plansmith.sagemaker.examples import example_for
from plansmith.sagemaker.signatures import ServedModel
from plansmith.sagemaker.tarball import archive_stream
from plansmith.system.aws.sagemaker_runtime import MAX_BODY_BYTES
from plansmith.triton.client.request_inputs import checked_feed
from plansmith.triton.client.sagemaker.client import SageMakerClient
from plansmith.triton.repository.renamed import Content

_KEY = "recommendation_job.payload"
_DIGEST_LENGTH = 12
_ANY_REGION = "us-east-1"  # nothing is sent there


class Payload(Record):
    """Sample requests.

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
        """Its file name, which holds a digest of its content."""
        return f"payload-{hashlib.sha256(self.archive).hexdigest()[:_DIGEST_LENGTH]}.tar.gz"


def make_payload(job: RecommendationJob, model: ServedModel) -> Payload:
    """The files that a job names; or the request that the release of its model holds.

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
    """The bodies in files, by their names."""
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
