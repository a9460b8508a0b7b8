"""What botocore raises, by kind: nobody answers, or nobody may ask."""

from __future__ import annotations

from plansmith.errors import EnvironmentFault, first_line


def cut_errors() -> tuple[type[Exception], ...]:
    """What is raised where a server is not there, or a connection to it ends before the answer does."""
    from botocore import exceptions
    from urllib3.exceptions import HTTPError

    return (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError, HTTPError)


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
