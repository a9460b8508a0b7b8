"""Addresses of services, as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

HEADER_VARIABLE = "PLANSMITH_TRITON_HEADER"
"""Holds a header for the requests by which a Triton is told what to serve, such as `admin-key: secret`."""

_TRITON_SCHEMES = ("http", "https", "grpc", "grpcs")


def without_secrets(address: str) -> str:
    """An address without the user, password and query that may stand in it."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else address


def wrong_triton(address: str) -> str | None:
    """What is wrong with the address of a Triton; None where nothing is."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in _TRITON_SCHEMES:
        return f"it begins with none of {', '.join(f'{scheme}://' for scheme in _TRITON_SCHEMES)}"
    if not parts.hostname:
        return "it names no host"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return f"secrets belong into the environment variable {HEADER_VARIABLE}"
    if parts.scheme.startswith("grpc") and (port is None or parts.path.strip("/")):
        return "gRPC has a host and a port, and no path"
    return None
