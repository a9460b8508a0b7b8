"""AWS on this machine."""

from __future__ import annotations

from ...support.sagemaker.cloudwatch import cloudwatch_account
from ...support.servers.aws_server import aws, s3_server

__all__ = ["aws", "cloudwatch_account", "s3_server"]
