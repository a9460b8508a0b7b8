"""Addresses of services, as they may be shown."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

HEADER_VARIABLE = "PLANSMITH_TRITON_HEADER"
"""Holds a header for the requests by which a Triton is told what to serve, such as `admin-key: secret`."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NOT_IN_HOSTS = set(' "<>\\^`{|}')
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
    faults = {
        f"it begins with none of {', '.join(f'{scheme}://' for scheme in _TRITON_SCHEMES)}": (
            parts.scheme not in _TRITON_SCHEMES
        ),
        "it names no host": not parts.hostname,
        "its host is no name or number of a machine": not _is_host(parts.hostname or ""),
        "its path has signs that have to be written as %20 and the like": (
            not _is_printable(parts.path) or " " in parts.path
        ),
        f"secrets belong into the environment variable {HEADER_VARIABLE}": (
            "@" in parts.netloc or bool(parts.query or parts.fragment)
        ),
        "gRPC has a host and a port, and no path": (
            parts.scheme.startswith("grpc") and (port is None or bool(parts.path.strip("/")))
        ),
    }
    return next((words for words, holds in faults.items() if holds), None)


def wrong_header(name: str, value: str) -> str | None:
    """What is wrong with a header of a request; None where nothing is.

    The names are those that gRPC takes, too (gRPC, doc/PROTOCOL-HTTP2.md, Custom-Metadata): where it is one of
    `-bin`, the value would not be text.
    """
    if not _HEADER_NAME.fullmatch(name) or name.lower().endswith("-bin"):
        return "its name is not made of letters, digits, '-', '_' and '.'"
    if not _is_printable(value):
        return "its value has signs that are not printable ASCII"
    return None


def _is_host(name: str) -> bool:
    """Whether the name can be looked up: each of its parts has 1 to 63 letters once it is written in ASCII."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return name.isprintable() and not set(name) & _NOT_IN_HOSTS


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable()
