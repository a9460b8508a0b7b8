"""A client of S3, as a place asks for it and the usual AWS chain completes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.records.destination import Location
from plansmith.system.aws.client import create_client, default_region, not_installed
from plansmith.system.aws.errors import credential_errors, no_credentials

ATTEMPTS = 5
"""How often a request is sent before it counts as failed, the first time included."""

_READ_SECONDS = 60
_CONNECTIONS = 16
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


def connect(place: Location, relative_to: Path) -> Any:
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
        raise not_installed() from error
    session = Session(profile=place.profile or None)
    try:
        client = _create(session, place, relative_to, path_style=place.path_style, is_secure=True)
        url = client.meta.endpoint_url
        if not (is_aws(url) and url.startswith("https:")):
            # Few servers but AWS's have a name in the DNS for each of their buckets.
            path_style = place.path_style if place.path_style is not None else not is_aws(url)
            client = _create(session, place, relative_to, path_style=path_style, is_secure=url.startswith("https:"))
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


def _create(session: Any, place: Location, relative_to: Path, *, path_style: bool | None, is_secure: bool) -> Any:
    # Checksums are ours: SHA-256, computed once and signed as a header. To sign the body besides hashes it once more,
    # which botocore leaves out over TLS only for checksums of its own.
    s3: dict[str, Any] = {"payload_signing_enabled": not is_secure}
    if path_style is not None:
        s3["addressing_style"] = "path" if path_style else "virtual"
    return create_client(
        session,
        "s3",
        place.region or default_region(session),
        endpoint_url=place.endpoint_url,
        attempts=ATTEMPTS,
        read_seconds=_READ_SECONDS,
        connections=_CONNECTIONS,
        verify=_certificates(place, relative_to),
        s3=s3,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _certificates(place: Location, relative_to: Path) -> str | None:
    if not place.ca_bundle:
        return None
    path = relative_to / place.ca_bundle
    if not path.is_file():
        raise EnvironmentFault(f"there is no file {path}, named as ca_bundle", remedy="name the PEM file to trust")
    return str(path)
