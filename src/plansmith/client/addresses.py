"""Where a Triton server answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from plansmith.errors import UsageError

Protocol = Literal["http", "grpc"]

DEFAULT_ADDRESSES: dict[Protocol, str] = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}

_SCHEMES: dict[Protocol, dict[str, bool]] = {
    "http": {"http": False, "https": True},
    "grpc": {"grpc": False, "grpcs": True, "http": False, "https": True},
}


@dataclass(frozen=True)
class Address:
    """Host, port and, for HTTP, a path below which Triton answers; `secure` is TLS."""

    place: str
    secure: bool
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.secure else ''}://{self.place}"


def read_address(url: str, protocol: Protocol) -> Address:
    """The address that a person writes: `host:port`, or with a scheme before it.

    Raises:
        UsageError: no host or port, another scheme, or more than the protocol has.
    """
    schemes = _SCHEMES[protocol]
    example = f"write it like {DEFAULT_ADDRESSES[protocol]} or {list(schemes)[1]}://host:port"
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no address: {error}", remedy=example) from error
    if parts.scheme and parts.scheme not in schemes:
        raise UsageError(f"{url!r} begins with {parts.scheme}://, which is not for {protocol}", remedy=example)
    secure = schemes.get(parts.scheme, False)
    path = parts.path.rstrip("/")
    if not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no address of a server", remedy=example)
    if protocol == "grpc" and path:
        raise UsageError(f"{url!r} has a path, which gRPC has none of", remedy=example)
    if port is None and not parts.scheme:
        raise UsageError(f"{url!r} names no port", remedy=example)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(f"{host}:{port or (443 if secure else 80)}{path}", secure, protocol)
