"""AWS on this machine."""

from __future__ import annotations

from ...support.sagemaker.account import account
from ...support.servers.aws_server import aws, s3_server

__all__ = ["account", "aws", "s3_server"]
