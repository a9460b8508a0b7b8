"""`hf:…`, `timm:…`, `onnx:…`, `mlflow:…` and `s3://…`, as typed: an id or name, a path, a registry, a bucket."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard, cast, get_args

from plansmith.config.mlflow_uri import read_registered
from plansmith.config.s3_uri import read_s3_uri
from plansmith.config.spec import name_from
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import SourceScheme

Scheme = Literal["hf", "timm", "onnx", "torch", "mlflow", "s3"]
_TYPED = {*get_args(Scheme)} - {"torch"}  # only what a registry or bucket has can be a module

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class SourceReference:
    """What was typed, split: `path` is set when it names a directory or a file, else `location` is an id or name.

    Of a registered model, `location` is models:/name and `revision` says which version, as `RegisteredName.wanted`; of
    one in a bucket, `location` is its address, with s3://.
    """

    scheme: Scheme
    location: str
    revision: str | None
    path: Path | None

    @property
    def default_name(self) -> str:
        """A model name made from the location."""
        if self.scheme == "s3":
            return name_from(read_s3_uri(self.location).name)
        last = self.location
        if self.path is not None:
            # Normalised, not resolved: a link is named as the person named it.
            normal = Path(os.path.normpath(self.path.absolute()))
            last = normal.stem if self.scheme == "onnx" else normal.name
        return name_from(last.rsplit("/", 1)[-1])

    @property
    def full_path(self) -> Path | None:
        """The path from the root; a linked directory is followed, a file keeps the neighbours that its name says."""
        if self.path is None:
            return None
        return Path(os.path.normpath(self.path.absolute())) if self.scheme == "onnx" else self.path.resolve()


def is_model_scheme(scheme: Scheme) -> TypeGuard[SourceScheme]:
    """Whether a scheme says how a model's files are read; one that says only who has them leaves that to the files."""
    return scheme in get_args(SourceScheme)


def parse_reference(text: str, *, relative_to: Path) -> SourceReference:
    """Read a source.

    Args:
        text: `hf:<id or directory>[@revision]`, `timm:<name or directory>`, `onnx:<file>`, `mlflow:models:/<name>` with
            `@<alias>`, `/<version>` or `/latest`, or `s3://<bucket>/<prefix or key.tar.gz>[@revision]`.
        relative_to: the folder that relative directories start from.

    Raises:
        UsageError: another scheme, or nothing after it.
        SourceError: it can only be a directory or a file, and there is none.
    """
    scheme, colon, location = text.partition(":")
    if not colon or scheme not in _TYPED:
        raise UsageError(
            f"cannot tell what {text!r} is",
            remedy=_meant(text, relative_to / text)
            or "write hf:<id or directory>[@revision], timm:<name or directory>, onnx:<file>,"
            " mlflow:models:/<name>@<alias>, s3://<bucket>/<prefix>, or the path of a .yaml spec",
        )
    if scheme == "mlflow":
        registered = read_registered(location)
        return SourceReference("mlflow", registered.model, registered.wanted, None)
    if scheme == "s3":
        uri = read_s3_uri(text)
        return SourceReference("s3", uri.address, uri.revision or None, None)
    if not location:
        wanted = "an .onnx file" if scheme == "onnx" else "a model or a directory"
        raise UsageError(f"nothing follows {scheme}:", remedy=f"name {wanted} after {scheme}:")
    known = cast(Scheme, scheme)
    directory = relative_to / Path(location).expanduser()
    if known == "onnx":
        return SourceReference(known, location, None, _file(directory))
    if directory.is_dir():
        return SourceReference(known, location, None, directory)
    name, _, revision = location.partition("@")
    if looks_like_path(location) or not _HUB_ID.fullmatch(name):
        raise SourceError(f"there is no directory {directory}", remedy="check the path", step="fetch")
    return SourceReference(known, name, revision or None, None)


def _meant(text: str, path: Path) -> str:
    """What to write where a path was given without its scheme; nothing where it leads nowhere."""
    if path.is_file() and path.suffix == ".onnx":
        return f"write onnx:{text}"
    config = path / "config.json"
    if not config.is_file():
        return ""
    is_timm = '"architecture"' in config.read_text(encoding="utf-8", errors="replace")
    return f"write timm:{text}" if is_timm else f"write hf:{text}"


def _file(path: Path) -> Path:
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.onnx"))
        raise SourceError(
            f"{path} is a directory, not an ONNX file",
            remedy=f"name a file in it, such as {inside[0]}" if inside else "name the .onnx file",
            step="fetch",
        )
    if not path.is_file():
        raise SourceError(f"there is no file {path}", remedy="check the path", step="fetch")
    return path


def looks_like_path(location: str) -> bool:
    """Whether a location cannot be a hub id: it starts at a root, a dot or a home folder, or goes deeper."""
    return location.startswith(("/", ".", "~")) or location.count("/") > 1
