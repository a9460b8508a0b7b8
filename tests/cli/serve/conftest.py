"""The Triton of this machine."""

from __future__ import annotations

from ...support.triton.installed import installation, site

__all__ = ["installation", "site"]
