"""A client of S3, as a place asks for it and the usual AWS chain completes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.records.destination import Place
from plansmith.stores.backend.s3.connection_errors import credential_errors, no_credentials

ATTEMPTS = 5
"""How often a request is sent before it counts as failed, the first time included."""

_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_CONNECTIONS = 16
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_DEFAULT_REGION = "us-east-1"


def connect(place: Place, relative_to: Path) -> Any:
    """A client; nothing is asked of the server yet.

    Args:
        place: an S3 prefix. What it leaves open is found as every AWS tool does.
        relative_to: the folder that a relative path of certificates starts from.

    Raises:
        EnvironmentFault: boto3 is not installed, or the profile or the certificates are not there.
        UsageError: the region or the addresses are none.
    """
    try:
        from botocore import exceptions
        from botocore.session import Session
    except ImportError as error:
        raise EnvironmentFault(f"{error.name} is not installed", remedy="pip install 'plansmith[s3]'") from error
    session = Session(profile=place.profile or None)
    try:
        client = _made(session, place, relative_to, _config(place.path_style, is_secure=True))
        url = client.meta.endpoint_url
        if not (is_aws(url) and url.startswith("https:")):
            # Few servers but AWS's have a name in the DNS for each of their buckets.
            path_style = place.path_style if place.path_style is not None else not is_aws(url)
            client = _made(session, place, relative_to, _config(path_style, is_secure=url.startswith("https:")))
    except exceptions.ProfileNotFound as error:
        raise EnvironmentFault(
            f"there is no profile {error.kwargs['profile']!r} in the AWS configuration",
            remedy=f"name one of these: {', '.join(session.available_profiles) or 'none is there yet: aws configure'}",
        ) from error
    except credential_errors() as error:
        raise no_credentials(error, place.to) from error
    except (exceptions.BotoCoreError, ValueError) as error:
        raise UsageError(
            f"{place.to} cannot be reached like that: {error}",
            remedy="see AWS_REGION, AWS_ENDPOINT_URL and the profile, or name --region and --endpoint-url",
        ) from error
    return client


def is_aws(url: str) -> bool:
    """Whether an address is one of AWS's own."""
    return (urlsplit(url).hostname or "").endswith(_AWS)


def _made(session: Any, place: Place, relative_to: Path, config: Any) -> Any:
    # botocore itself reads only AWS_DEFAULT_REGION; the other SDKs and the AWS CLI read AWS_REGION, and that first:
    # docs.aws.amazon.com/sdkref/latest/guide/feature-region.html.
    found = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    return session.create_client(
        "s3",
        region_name=place.region or found or _DEFAULT_REGION,
        endpoint_url=place.endpoint_url or None,
        verify=_certificates(place, relative_to),
        config=config,
    )


def _certificates(place: Place, relative_to: Path) -> str | None:
    if not place.ca_bundle:
        return None
    path = relative_to / place.ca_bundle
    if not path.is_file():
        raise EnvironmentFault(f"there is no file {path}, named as ca_bundle", remedy="name the PEM file to trust")
    return str(path)


def _config(path_style: bool | None, *, is_secure: bool) -> Any:
    from botocore.config import Config

    # Checksums are ours: SHA-256, computed once and signed as a header. To sign the body besides hashes it once more,
    # which botocore leaves out over TLS only for checksums of its own.
    s3: dict[str, Any] = {"payload_signing_enabled": not is_secure}
    if path_style is not None:
        s3["addressing_style"] = "path" if path_style else "virtual"
    return Config(
        s3=s3,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="plansmith",
    )
