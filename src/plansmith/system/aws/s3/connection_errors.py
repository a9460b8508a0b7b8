"""The errors of botocore in our words: what cannot be reached, what is not trusted, and who may not enter."""

from __future__ import annotations

import errno
import os

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, first_line
from plansmith.system.aws.errors import credential_errors, cut_errors, no_credentials
from plansmith.system.aws.s3.denied_errors import fault_of_refusal, no_s3
from plansmith.system.aws.s3.errors import S3Call, refusal_in
from plansmith.system.urls import connection_reason


def fault_from(error: Exception, asked: S3Call) -> PlansmithError | None:
    """The error of ours for one of botocore's; None for one that is not."""
    from botocore import exceptions, parsers

    refusal = refusal_in(error)
    if refusal is not None:
        return fault_of_refusal(refusal, asked)
    if isinstance(error, parsers.ResponseParserError):
        return no_s3(asked)
    if isinstance(error, (*credential_errors(), exceptions.SSLError, *cut_errors())):
        return _fault_of_environment(error, asked)
    if isinstance(error, exceptions.BotoCoreError):
        return RepositoryError(
            f"{asked.what} cannot be asked for: {first_line(error)}",
            remedy=f"see that the place is right: aws s3 ls {asked.place}/{asked.reached}",
        )
    return None


def is_refused(error: Exception) -> bool:
    """Whether nobody listens where the server should: nothing was sent."""
    from botocore.exceptions import EndpointConnectionError

    return isinstance(error, EndpointConnectionError) and os.strerror(errno.ECONNREFUSED) in connection_reason(error)


def cut_short(missing_bytes: int) -> Exception:
    """One of `cut_errors`, for an answer that ends in good order before all of it was there."""
    from botocore import exceptions

    error: Exception = exceptions.IncompleteReadError(actual_bytes=0, expected_bytes=missing_bytes)
    return error


def _fault_of_environment(error: Exception, asked: S3Call) -> EnvironmentFault:
    from botocore import exceptions

    if isinstance(error, exceptions.SSLError):
        return EnvironmentFault(
            f"{asked.host} is not trusted, or does not speak TLS: {connection_reason(error)}",
            remedy="name the certificates to trust with --ca-bundle, or see that the endpoint is right: http or https",
        )
    if isinstance(error, credential_errors()):
        return no_credentials(error, asked.place)
    return EnvironmentFault(
        f"{asked.place} cannot be reached at {asked.host}: {connection_reason(error)}",
        remedy="see that the server runs and the endpoint is right, then run the same command again: it goes on",
        transient=True,
    )
