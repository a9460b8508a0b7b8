"""An object of S3, with and without its content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """An object, without its content: size in bytes, seconds since 1970 of its last change by the store's clock.

    `sha256`: what the store keeps beside it as the digest of its content, where `find` is told of one; or empty.
    `tag`: S3's ETag, which is another one for every content; empty for a file of a folder.
    """

    key: str
    bytes: int
    changed: float
    sha256: str = ""
    tag: str = ""


@dataclass(frozen=True)
class Document:
    """A small object that was read, and the tag by which it can be swapped."""

    content: bytes
    tag: str
