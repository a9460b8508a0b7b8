"""Signatures of requests that are sent to AWS over connections of one's own (Signature Version 4)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from plansmith.system.aws.client import not_installed
from plansmith.system.aws.errors import credential_errors, no_credentials

CONTENT_DIGEST = "X-Amz-Content-SHA256"
"""The header with the SHA-256 of the body in hexadecimal, which a signature covers."""

_REUSE_SECONDS = 60
# AWS takes a signature for five minutes: docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html


class RequestSigner:
    """Signs requests to one service with the credentials of the usual chain.

    Signing takes longer than sending a small request. The headers of a request that is sent again are therefore used
    again for a minute.

    Args:
        service: its name in signatures, such as sagemaker.
        region: where it is.
        profile: of the AWS configuration files; empty for what the environment says.
    """

    def __init__(self, service: str, region: str, profile: str = "") -> None:
        self._service = service
        self._region = region
        self._profile = profile
        self._credentials: Any = None
        self._signed: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        self._since = 0.0

    def headers(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a POST request with its signature.

        Args:
            url: of the request.
            headers: of the request, with `CONTENT_DIGEST`.

        Raises:
            EnvironmentFault: botocore is not installed, or there are no credentials.
        """
        now = time.monotonic()
        if now - self._since > _REUSE_SECONDS:
            self._signed, self._since = {}, now
        key = (url, tuple(headers.values()))
        signed = self._signed.get(key)
        if signed is None:
            signed = self._signed[key] = self._sign(url, headers)
        return signed

    def _sign(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.session import Session
        except ImportError as error:
            raise not_installed() from error
        request = AWSRequest("POST", url, headers=dict(headers))
        try:
            if self._credentials is None:
                self._credentials = Session(profile=self._profile or None).get_credentials()
            current = self._credentials and self._credentials.get_frozen_credentials()
            SigV4Auth(current, self._service, self._region).add_auth(request)
        except credential_errors() as error:
            raise no_credentials(error, f"the service {self._service}") from error
        return dict(request.headers.items())
