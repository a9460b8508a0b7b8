"""The errors of botocore in our words: what cannot be reached, what is not trusted, and who may not enter."""

from __future__ import annotations

import errno
import os

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, first_line
from plansmith.stores.backend.s3.denied_errors import fault_of_refusal, no_s3
from plansmith.stores.backend.s3.errors import Asked, refusal_in
from plansmith.system.urls import connection_reason


def fault_from(error: Exception, asked: Asked) -> PlansmithError | None:
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


def cut_errors() -> tuple[type[Exception], ...]:
    """What is raised where a server is not there, or a connection to it ends before the answer does."""
    from botocore import exceptions
    from urllib3.exceptions import HTTPError

    return (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError, HTTPError)


def is_refused(error: Exception) -> bool:
    """Whether nobody listens where the server should: nothing was sent."""
    from botocore.exceptions import EndpointConnectionError

    return isinstance(error, EndpointConnectionError) and os.strerror(errno.ECONNREFUSED) in connection_reason(error)


def cut_short(missing_bytes: int) -> Exception:
    """One of `cut_errors`, for an answer that ends in good order before all of it was there."""
    from botocore import exceptions

    error: Exception = exceptions.IncompleteReadError(actual_bytes=0, expected_bytes=missing_bytes)
    return error


def credential_errors() -> tuple[type[Exception], ...]:
    """What is raised where the AWS chain ends without credentials."""
    from botocore import exceptions

    return (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.NoAuthTokenError,
        exceptions.SSOError,
        exceptions.RefreshWithMFAUnsupportedError,
        exceptions.MetadataRetrievalError,
        exceptions.ConfigParseError,
    )


def no_credentials(error: Exception, place: str) -> EnvironmentFault:
    """One of `credential_errors`, in our words."""
    return EnvironmentFault(
        f"{place}: there are no usable AWS credentials here: {first_line(error)}",
        remedy="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; see: aws configure list",
    )


def _fault_of_environment(error: Exception, asked: Asked) -> EnvironmentFault:
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
