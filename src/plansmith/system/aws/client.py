"""botocore clients of AWS services, all with the same settings."""

from __future__ import annotations

import os
import re
from typing import Any

from plansmith.errors import EnvironmentFault, UsageError, first_line

CONNECT_SECONDS = 10
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")


def cut_errors() -> tuple[type[Exception], ...]:
    """Return the exception types for an unreachable server, or a connection that ends before the response."""
    from botocore import exceptions
    from urllib3.exceptions import HTTPError

    return (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError, HTTPError)


def credential_errors() -> tuple[type[Exception], ...]:
    """Return the exception types for missing credentials in the AWS credential chain."""
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
    """Convert one of `credential_errors` to plansmith's own error."""
    return EnvironmentFault(
        f"{place}: there are no usable AWS credentials here: {first_line(error)}",
        remedy="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; see: aws configure list",
    )


def configured_region(session: Any) -> str:
    """Return the region of the environment or of the AWS configuration files; empty if neither names one.

    botocore itself reads only AWS_DEFAULT_REGION; the other SDKs and the AWS CLI read AWS_REGION, and that first:
    docs.aws.amazon.com/sdkref/latest/guide/feature-region.html.
    """
    return os.environ.get("AWS_REGION") or session.get_config_variable("region") or ""


def require_region(session: Any) -> str:
    """Return the configured region, for a service that cannot be asked for things of another region.

    Raises:
        UsageError: none is configured.
    """
    region = configured_region(session)
    if not region:
        raise UsageError(
            "no region is named, and neither AWS_REGION nor the AWS profile has one",
            remedy="name it: --region eu-west-1, or export AWS_REGION=eu-west-1",
        )
    return region


def has_credentials() -> bool:
    """Whether the AWS credential chain finds credentials; AWS may still refuse them.

    Raises:
        EnvironmentFault: botocore is not installed; or the chain is broken, such as by a profile that does not exist.
    """
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise not_installed() from error
    try:
        return Session().get_credentials() is not None
    except BotoCoreError as error:
        raise no_credentials(error, "AWS") from error


def create_client(
    session: Any,
    service: str,
    region: str,
    *,
    endpoint_url: str = "",
    attempts: int,
    read_seconds: float,
    connections: int = 10,
    verify: str | None = None,
    **options: Any,
) -> Any:
    """Create a client; makes no request yet.

    Args:
        session: botocore's.
        service: its name, such as sqs.
        region: where it is.
        endpoint_url: where it is neither AWS's own nor the one that the environment names.
        attempts: how often a request is sent before it counts as failed, the first time included.
        read_seconds: how long an answer may take.
        connections: how many are kept open.
        verify: a PEM file of certificates to trust; the usual ones when None.
        options: what else botocore's Config takes.
    """
    from botocore.config import Config

    return session.create_client(
        service,
        region_name=region,
        endpoint_url=endpoint_url or None,
        verify=verify,
        config=Config(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=read_seconds,
            max_pool_connections=connections,
            user_agent_extra="plansmith",
            **options,
        ),
    )


def not_installed() -> EnvironmentFault:
    """Return the error for missing botocore, which boto3 installs."""
    return EnvironmentFault("boto3 is not installed", remedy="pip install 'plansmith[s3]'")


def resolve_region(name: str = "") -> str:
    """Resolve a region name; if empty, use that of the environment or the AWS configuration.

    Raises:
        UsageError: no region can have this name, or none is configured.
        EnvironmentFault: botocore is not installed.
    """
    if name and not _REGION.fullmatch(name):
        raise UsageError(f"{name!r} is no region of AWS", remedy="write it like eu-west-1")
    if name:
        return name
    try:
        from botocore.session import Session
    except ImportError as error:
        raise not_installed() from error
    return require_region(Session())
