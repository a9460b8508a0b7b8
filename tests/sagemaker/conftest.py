"""AWS on this machine, for archives on their way into S3."""

from __future__ import annotations

from ..support.servers.aws_server import aws, s3_server
from ..support.stores.s3 import plain_client, s3, seen

__all__ = ["aws", "plain_client", "s3", "s3_server", "seen"]
