"""An account on moto."""

from __future__ import annotations

from ...support.sagemaker.account import account

__all__ = ["account"]
