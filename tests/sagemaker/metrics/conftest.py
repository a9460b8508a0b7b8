"""An account on moto."""

from __future__ import annotations

from ...support.sagemaker.cloudwatch import cloudwatch_account

__all__ = ["cloudwatch_account"]
