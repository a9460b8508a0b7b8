"""Small repositories, and what a check says of them."""

from __future__ import annotations

from ...support.checker.written import written

__all__ = ["written"]
