"""`hf:…` and `timm:…`, as typed: a hub id or name, or a directory."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from plansmith.errors import SourceError, UsageError

Scheme = Literal["hf", "timm"]

_LONGEST_NAME = 128
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class SourceReference:
    """What was typed, split: `directory` is set when it names one, else `location` is an id or name."""

    scheme: Scheme
    location: str
    revision: str | None
    directory: Path | None

    @property
    def default_name(self) -> str:
        """A model name made from the location."""
        # Normalised, not resolved: a link is named as the person named it.
        last = Path(os.path.normpath(self.directory.absolute())).name if self.directory else self.location
        plain = unicodedata.normalize("NFKD", last.rsplit("/", 1)[-1]).encode("ascii", "ignore").decode()
        return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).lstrip("-._")[:_LONGEST_NAME].rstrip("-") or "model"


def parse_reference(text: str, *, relative_to: Path) -> SourceReference:
    """Read a source.

    Args:
        text: `hf:<id or directory>[@revision]` or `timm:<name or directory>`.
        relative_to: the folder that relative directories start from.

    Raises:
        UsageError: another scheme, or nothing after it.
        SourceError: it can only be a directory, and there is none.
    """
    scheme, colon, location = text.partition(":")
    if not colon or scheme not in get_args(Scheme):
        raise UsageError(
            f"cannot tell what {text!r} is",
            remedy="write hf:<id or directory>[@revision], timm:<name or directory>, or the path of a .yaml spec",
        )
    if not location:
        raise UsageError(f"nothing follows {scheme}:", remedy=f"name a model or a directory after {scheme}:")
    known = cast(Scheme, scheme)
    directory = relative_to / Path(location).expanduser()
    if directory.is_dir():
        return SourceReference(known, location, None, directory)
    name, _, revision = location.partition("@")
    if looks_like_path(location) or not _HUB_ID.fullmatch(name):
        raise SourceError(f"there is no directory {directory}", remedy="check the path", step="fetch")
    return SourceReference(known, name, revision or None, None)


def looks_like_path(location: str) -> bool:
    """Whether a location cannot be a hub id: it starts at a root, a dot or a home folder, or goes deeper."""
    return location.startswith(("/", ".", "~")) or location.count("/") > 1
