"""What soak tests share: PostgreSQL, a Prefect server and its workers."""

from __future__ import annotations

from ..support.prefect.team import crew

__all__ = ["crew"]
