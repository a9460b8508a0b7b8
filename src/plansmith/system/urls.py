"""Service URLs: Triton addresses, headers of requests to them, and forms that are safe to display."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

from plansmith.errors import UsageError, first_line

Protocol = Literal["http", "grpc"]

DEFAULT_ADDRESSES: dict[Protocol, str] = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}

HEADER_VARIABLE = "PLANSMITH_TRITON_HEADER"
"""Holds a header for the requests by which a Triton is told what to serve, such as `admin-key: secret`."""

# With gRPC, http and https stand for no TLS and TLS, as tritonclient's own users write them.
_SCHEMES: dict[Protocol | None, tuple[str, ...]] = {
    None: ("http", "https", "grpc", "grpcs"),
    "http": ("http", "https"),
    "grpc": ("grpc", "grpcs", "http", "https"),
}
# What urllib3 puts before the reason: the pool or connection that it happened to.
_CONNECTION = re.compile(r"^\w+\(host=.*?\): |^<[\w.]+ object at \w+>: ")
# What HTTP and gRPC both take for a name: github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md, "Custom-Metadata".
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Address:
    """Host, port and, for HTTP, the base path of a Triton; `secure` means TLS."""

    place: str
    secure: bool
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.secure else ''}://{self.place}"


def read_address(url: str, protocol: Protocol | None = None) -> Address:
    """Parse a Triton address: `host:port`, or with a scheme.

    Args:
        url: the address; without a port, a scheme other than gRPC's has its usual one.
        protocol: what is spoken there; None for what the scheme says, and HTTP where there is none.

    Raises:
        UsageError: no such address.
    """
    try:
        return _read(url, protocol)
    except ValueError as error:
        example = f"{DEFAULT_ADDRESSES[protocol or 'http']} or {'grpc' if protocol == 'grpc' else 'https'}://host:port"
        raise UsageError(
            f"{_shown(url)!r} is no address of a Triton: {error}", remedy=f"write it like {example}"
        ) from error


def wrong_triton(url: str) -> str | None:
    """Return what is wrong with a Triton address, without secrets; None if it is valid."""
    try:
        _read(url, None)
    except ValueError as error:
        return str(error)
    return None


def read_header(text: str, subject: str) -> tuple[str, str]:
    """Parse a header in curl's form, NAME: VALUE.

    Args:
        text: the header; its value may be a secret, and is in no error.
        subject: who was given it, as the beginning of a sentence.

    Raises:
        UsageError: another form, or what no header may hold.
    """
    name, colon, value = (part.strip(" \t") for part in text.partition(":"))
    is_name = bool(_HEADER_NAME.fullmatch(name)) and not name.lower().endswith("-bin")  # gRPC's for what is no text
    if not colon or not is_name or not (value.isascii() and value.isprintable()):
        raise UsageError(
            f"{subject} is not 'NAME: VALUE' in printable ASCII", remedy="write it like 'Authorization: Bearer …'"
        )
    return name, value


def without_secrets(address: str) -> str:
    """Remove the user, password and query from a URL."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else address


def connection_reason(error: BaseException) -> str:
    """Return the innermost message of an HTTP client error; the outer ones repeat the URL and object names."""
    inner: Any = getattr(error, "kwargs", {}).get("error", error)
    while True:
        within = [getattr(inner, "reason", None), *inner.args[:1]]
        cause = next((candidate for candidate in within if isinstance(candidate, Exception)), None)
        if cause is None:
            return _CONNECTION.sub("", first_line(inner))
        inner = cause


def _read(url: str, protocol: Protocol | None) -> Address:
    """Like `read_address`, but raise a ValueError that states the problem and contains no secret."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("it holds a character that has no place in one")
    parts = urlsplit(url if "://" in url else f"//{url}")
    if parts.scheme and parts.scheme not in _SCHEMES[protocol]:
        raise ValueError(f"it begins with none of {', '.join(f'{scheme}://' for scheme in _SCHEMES[protocol])}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"secrets belong into a header: the environment variable {HEADER_VARIABLE}, or --header")
    spoken: Protocol = protocol or ("grpc" if parts.scheme.startswith("grpc") else "http")
    host, port, path = _host(parts), parts.port, parts.path.rstrip("/")
    if spoken == "grpc" and (port is None or path):
        raise ValueError("gRPC has a host and a port, and no path")
    if port is None and not parts.scheme:
        raise ValueError("it names no port")
    secure = parts.scheme in {"https", "grpcs"}
    return Address(f"{host}:{port or (443 if secure else 80)}{path}", secure, spoken)


def _host(parts: SplitResult) -> str:
    if not parts.hostname:
        raise ValueError("it names no host")
    if ":" in parts.hostname:
        return f"[{parts.hostname}]"
    try:
        parts.hostname.encode("idna")
    except UnicodeError as error:
        raise ValueError("its host has a part that is empty, or longer than 63 letters") from error
    return parts.hostname


def _shown(url: str) -> str:
    """Like `without_secrets`, for text that may not be a valid address."""
    scheme, colon, rest = url.rpartition("://")
    return f"{scheme}{colon}{rest.rpartition('@')[2].partition('?')[0]}"
