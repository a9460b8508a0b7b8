"""Addresses of services, as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def without_secrets(address: str) -> str:
    """An address without the user, password and query that may stand in it."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else address
