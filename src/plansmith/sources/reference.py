"""`hf:…`, `timm:…`, `onnx:…` and `mlflow:…`, as typed: a hub id or name, a directory, a file, a registered model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from plansmith.config import ModelSpec, name_from
from plansmith.errors import SourceError, UsageError
from plansmith.sources import timm_models
from plansmith.sources.directory import CONFIG_FILE, read_config
from plansmith.sources.mlflow_models.names import read_registered

Scheme = Literal["hf", "timm", "onnx", "mlflow"]

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class SourceReference:
    """What was typed, split: `path` is set when it names a directory or a file, else `location` is an id or name.

    Of a registered model, `location` is models:/name and `revision` says which version, as `RegisteredName.wanted`.
    """

    scheme: Scheme
    location: str
    revision: str | None
    path: Path | None

    @property
    def default_name(self) -> str:
        """A model name made from the location."""
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


def parse_reference(text: str, *, relative_to: Path) -> SourceReference:
    """Read a source.

    Args:
        text: `hf:<id or directory>[@revision]`, `timm:<name or directory>`, `onnx:<file>`, or `mlflow:models:/<name>`
            with `@<alias>`, `/<version>` or `/latest`.
        relative_to: the folder that relative directories start from.

    Raises:
        UsageError: another scheme, or nothing after it.
        SourceError: it can only be a directory or a file, and there is none.
    """
    scheme, colon, location = text.partition(":")
    if not colon or scheme not in get_args(Scheme):
        raise UsageError(
            f"cannot tell what {text!r} is",
            remedy=_meant(text, relative_to / text)
            or "write hf:<id or directory>[@revision], timm:<name or directory>, onnx:<file>,"
            " mlflow:models:/<name>@<alias>, or the path of a .yaml spec",
        )
    if scheme == "mlflow":
        registered = read_registered(location)
        return SourceReference("mlflow", registered.model, registered.wanted, None)
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
    if not (path / CONFIG_FILE).is_file():
        return ""
    return f"write timm:{text}" if "architecture" in read_config(path) else f"write hf:{text}"


def refuse_unfitting(reference: SourceReference, spec: ModelSpec) -> None:
    """See that the spec asks nothing of a source that its kind cannot do.

    Raises:
        UsageError: names what cannot be, and why.
    """
    if reference.scheme == "onnx" and spec.task:
        raise UsageError(
            "an ONNX file has the head that it was exported with: a task cannot change it",
            remedy="leave the task out, or compile the model that the file was exported from (hf:…, timm:…)",
        )
    if reference.scheme == "onnx" and spec.random_weights:
        raise UsageError("an ONNX file holds its weights: there are none to draw", remedy="leave random_weights out")
    if reference.scheme == "onnx" and spec.device != "cpu":
        raise UsageError("an ONNX file is not exported: a GPU has nothing to do", remedy="leave device out")
    if reference.scheme == "mlflow" and spec.random_weights:
        raise UsageError(
            "a registered model has its weights: there are none to draw", remedy="leave random_weights out"
        )
    if reference.scheme == "timm":
        timm_models.require_task(spec.task)
    described = [name for name in ("inputs", "outputs") if getattr(spec, name)]
    if reference.scheme == "timm" and described:
        raise UsageError(
            f"a timm model takes images and gives one output: {' and '.join(described)} cannot change that",
            remedy=f"leave {' and '.join(described)} out; a task of image-feature-extraction gives pooled features",
        )


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
