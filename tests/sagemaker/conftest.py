"""AWS and Triton on this machine."""

from __future__ import annotations

from ..support.sagemaker.account import account, aws_endpoint, loader
from ..support.servers.aws_server import aws, s3_server
from ..support.stores.s3 import plain_client, s3, server_abilities
from ..support.triton.installed import installation, site

__all__ = [
    "account",
    "aws",
    "aws_endpoint",
    "installation",
    "loader",
    "plain_client",
    "s3",
    "s3_server",
    "server_abilities",
    "site",
]
