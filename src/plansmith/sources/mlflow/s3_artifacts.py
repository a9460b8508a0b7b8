"""Files in a bucket that the operator allowed, where the MLflow server hands out addresses instead of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from plansmith.errors import EnvironmentFault, SourceError, first_line
from plansmith.sources.mlflow.artifacts import MOST_FILES, RemoteFile, require_plain, too_many

_CHUNK_BYTES = 1 << 20
_GONE = {"NoSuchBucket", "NoSuchKey", "404"}
_FORBIDDEN = {"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}


class BucketFiles:
    """The files of one version in a bucket, reached as MLflow's clients reach it (MLFLOW_S3_ENDPOINT_URL).

    Args:
        bucket: that they lie in.
        prefix: of their keys, without a slash at either end.
        of: the version, for errors.
    """

    def __init__(self, bucket: str, prefix: str, of: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._of = of

    def listed(self) -> tuple[RemoteFile, ...]:
        """As `Files.listed`."""
        found: list[RemoteFile] = []
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            for one in (one for page in pages for one in page.get("Contents", [])):
                path = one["Key"].removeprefix(self._prefix)
                if (path.endswith("/") and not one["Size"]) or not path:
                    continue  # stands for a folder
                require_plain(path, self._of)
                found.append(RemoteFile(path, one["Size"]))
                if len(found) > MOST_FILES:
                    raise too_many(self._of)
        if not found:
            raise SourceError(f"{self._of} has no files in its store", remedy="log and register the model again")
        return tuple(sorted(found, key=lambda file: file.path))

    def pieces(self, path: str) -> Iterator[bytes]:
        """As `Files.pieces`."""
        with self._errors():
            body = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}{path}")["Body"]
            with body:
                yield from body.iter_chunks(_CHUNK_BYTES)

    @cached_property
    def _client(self) -> Any:
        import boto3

        return boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise EnvironmentFault(
                f"{self._of} lies in S3, and boto3 is not installed", remedy="pip install 'plansmith[s3]'"
            ) from error
        place = f"s3://{self._bucket}/{self._prefix}"
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _GONE:
                raise SourceError(f"{self._of} is not at {place}", remedy="register the model again") from error
            if code in _FORBIDDEN:
                raise SourceError(
                    f"{place}, where {self._of} lies, may not be read ({code})",
                    remedy="give access to it (s3:GetObject)",
                ) from error
            raise EnvironmentFault(
                f"S3 answered {code} for {place}", remedy="try again in a while", transient=True
            ) from error
        except BotoCoreError as error:
            raise EnvironmentFault(
                f"{place} cannot be read: {first_line(error)}",
                remedy="see that S3 is reached, or try again",
                transient=True,
            ) from error
