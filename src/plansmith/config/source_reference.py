"""Source references: `hf:`, `timm:`, `onnx:`, `torch:`, `mlflow:` and `s3://`, parsed into id, name, path or bucket."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeGuard, cast, get_args

from plansmith.config.spec import name_from
from plansmith.errors import SourceError, UsageError
from plansmith.records.destination import S3_SCHEME, wrong_place
from plansmith.records.model import SourceScheme

LATEST = "latest"

_SCHEME = "models:/"
_MLFLOW_FORMS = "write mlflow:models:/NAME@ALIAS, mlflow:models:/NAME/VERSION or mlflow:models:/NAME/latest"
_VERSION = re.compile(r"[1-9]\d{0,17}", re.ASCII)
_ALIAS = re.compile(r"[\w-]{1,255}", re.ASCII)
_LONGEST_NAME = 255

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
"""How the keys of archives end, which hold a model each."""

_S3_FORMS = (
    "write s3://BUCKET/PREFIX or s3://BUCKET/KEY.tar.gz, with @ and the 64 digits of a revision where one is meant"
)
_PINNED = re.compile(r"(.+)@([0-9a-f]{64})")
Scheme = Literal["hf", "timm", "onnx", "torch", "mlflow", "s3"]
FILE_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
"""Schemes of sources that are one file, and how its name ends."""

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class RegisteredName:
    """Registered model name with a version selector: `@alias`, a number, or `latest`."""

    name: str
    selector: str

    @classmethod
    def of(cls, model: str, version: str) -> Self:
        """Build from the parts of a source: models:/name, and the version selector."""
        return cls(model.removeprefix(_SCHEME), version)

    @property
    def model(self) -> str:
        """The model name without a version."""
        return f"{_SCHEME}{self.name}"

    @property
    def alias(self) -> str:
        """The selected alias; empty without one."""
        return self.selector[1:] if self.selector.startswith("@") else ""

    @property
    def is_fixed(self) -> bool:
        """Whether it always refers to the same version."""
        return not self.alias and self.selector != LATEST

    def __str__(self) -> str:
        return f"{self.model}{self.selector}" if self.alias else f"{self.model}/{self.selector}"


def read_registered(location: str) -> RegisteredName:
    """Parse the part after `mlflow:`, in the forms of MLflow's own clients.

    Raises:
        UsageError: another form.
    """
    if not location.startswith(_SCHEME):
        raise _no_model(location, f"{location!r} is no registered model", _MLFLOW_FORMS)
    name, slash, version = location.removeprefix(_SCHEME).strip("/").partition("/")
    alias = ""
    if not slash:
        name, at, alias = name.rpartition("@")
        if not at:
            raise _no_model(location, f"{location} does not say which version is meant", _MLFLOW_FORMS)
        if not _ALIAS.fullmatch(alias):
            raise _no_model(location, f"{alias!r} cannot be an alias of MLflow", "an alias has A-Z a-z 0-9 _ -")
    elif version.lower() == LATEST:
        version = LATEST
    elif not _VERSION.fullmatch(version):
        raise _no_model(
            location,
            f"{version!r} is no version: they are numbers, and MLflow has given up stages",
            f"set an alias on the version that is meant; {_MLFLOW_FORMS}",
        )
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable() or name in {".", ".."} or ":" in name:
        raise _no_model(location, f"{name!r} cannot be the name of a registered model", _MLFLOW_FORMS)
    return RegisteredName(name, f"@{alias}" if alias else version)


def _no_model(location: str, message: str, remedy: str) -> UsageError:
    if location.startswith("runs:/"):
        remedy = f"register the run's model (mlflow.register_model), then {remedy}"
    return UsageError(message, remedy=remedy)


@dataclass(frozen=True)
class S3Uri:
    """S3 location of a model.

    Args:
        address: s3://bucket/prefix of a folder, or s3://bucket/key of an archive; without a slash at its end.
        revision: the digest that its objects have to have; any when empty.
    """

    address: str
    revision: str = ""

    @property
    def is_archive(self) -> bool:
        """Whether it is a single archive object that contains the model."""
        return self.address.endswith(ARCHIVE_SUFFIXES)

    @property
    def name(self) -> str:
        """The last part of the URI, without an archive suffix."""
        last = self.address.rpartition("/")[2]
        return next((last.removesuffix(suffix) for suffix in ARCHIVE_SUFFIXES if last.endswith(suffix)), last)


def read_s3_uri(text: str) -> S3Uri:
    """Parse a source that begins with s3://.

    Raises:
        UsageError: it is no place in S3.
    """
    pinned = _PINNED.fullmatch(text)
    address, revision = pinned.groups() if pinned else (text, "")
    wrong = "it begins otherwise" if not address.startswith(S3_SCHEME) else wrong_place(address)
    if wrong is not None:
        raise UsageError(f"{text!r} is no place in S3: {wrong}", remedy=_S3_FORMS)
    return S3Uri(address.rstrip("/"), revision)


@dataclass(frozen=True)
class SourceReference:
    """Parsed source reference: `path` is set for a directory or file, otherwise `location` is an id or name.

    Of a registered model, `location` is models:/name and `revision` says which version, as `RegisteredName.selector`;
    of one in a bucket, `location` is its address, with s3://.
    """

    scheme: Scheme
    location: str
    revision: str | None
    path: Path | None

    @property
    def default_name(self) -> str:
        """A model name derived from the location."""
        if self.scheme == "s3":
            return name_from(read_s3_uri(self.location).name)
        last = self.location
        if self.path is not None:
            # Normalised, not resolved: a link is named as the person named it.
            normal = Path(os.path.normpath(self.path.absolute()))
            last = normal.stem if self.scheme in FILE_SUFFIXES else normal.name
        return name_from(last.rsplit("/", 1)[-1])

    @property
    def full_path(self) -> Path | None:
        """The absolute path; a linked directory is resolved, a linked file keeps its own folder."""
        if self.path is None:
            return None
        return Path(os.path.normpath(self.path.absolute())) if self.scheme in FILE_SUFFIXES else self.path.resolve()


def is_model_scheme(scheme: Scheme) -> TypeGuard[SourceScheme]:
    """Whether a scheme determines how a model's files are read; a storage scheme leaves that to the files."""
    return scheme in get_args(SourceScheme)


def parse_reference(text: str, *, relative_to: Path) -> SourceReference:
    """Parse a source reference.

    Args:
        text: `hf:<id or directory>[@revision]`, `timm:<name or directory>`, `onnx:<file>`, `torch:<file.pt2>`,
            `mlflow:models:/<name>` with `@<alias>`, `/<version>` or `/latest`, or
            `s3://<bucket>/<prefix or key.tar.gz>[@revision]`.
        relative_to: the folder that relative directories start from.

    Raises:
        UsageError: another scheme, or nothing after it.
        SourceError: it can only be a directory or a file, and there is none.
    """
    scheme, colon, location = text.partition(":")
    if not colon or scheme not in get_args(Scheme):
        path = relative_to / text
        for file_scheme, suffix in FILE_SUFFIXES.items():
            if path.suffix == suffix and not path.exists():
                raise UsageError(f"there is no file {text}", remedy=f"check the path, and write {file_scheme}:<file>")
        raise UsageError(
            f"cannot tell what {text!r} is",
            remedy=_meant(text, path)
            or "write hf:<id or directory>[@revision], timm:<name or directory>, onnx:<file>, torch:<file.pt2>,"
            " mlflow:models:/<name>@<alias>, s3://<bucket>/<prefix>, or the path of a .yaml spec",
        )
    if scheme == "mlflow":
        registered = read_registered(location)
        return SourceReference("mlflow", registered.model, registered.selector, None)
    if scheme == "s3":
        uri = read_s3_uri(text)
        return SourceReference("s3", uri.address, uri.revision or None, None)
    if not location:
        target = f"the {FILE_SUFFIXES[scheme]} file" if scheme in FILE_SUFFIXES else "a model or a directory"
        raise UsageError(f"nothing follows {scheme}:", remedy=f"name {target} after {scheme}:")
    scheme_name = cast(Scheme, scheme)
    directory = relative_to / Path(location).expanduser()
    if scheme in FILE_SUFFIXES:
        return SourceReference(scheme_name, location, None, _file(directory, FILE_SUFFIXES[scheme]))
    if directory.is_dir():
        return SourceReference(scheme_name, location, None, directory)
    name, _, revision = location.partition("@")
    if looks_like_path(location) or not _HUB_ID.fullmatch(name):
        raise SourceError(
            f"there is no directory {os.path.normpath(directory)}",
            remedy="check the path; a model of the hub is hf:<organisation>/<name>",
            step="fetch",
        )
    return SourceReference(scheme_name, name, revision or None, None)


def _meant(text: str, path: Path) -> str:
    """Suggest the reference for a path given without its scheme; empty if the path does not exist."""
    schemes = [scheme for scheme, suffix in FILE_SUFFIXES.items() if path.is_file() and path.suffix == suffix]
    if schemes:
        return f"write {schemes[0]}:{text}"
    config = path / "config.json"
    if not config.is_file():
        is_of_hub = "/" in text and not looks_like_path(text) and _HUB_ID.fullmatch(text.partition("@")[0])
        return f"write hf:{text} for a model of the hub" if is_of_hub and not path.exists() else ""
    is_timm = '"architecture"' in config.read_text(encoding="utf-8", errors="replace")
    return f"write timm:{text}" if is_timm else f"write hf:{text}"


def _file(path: Path, suffix: str) -> Path:
    if path.is_dir():
        inside = sorted(p.name for p in path.glob(f"*{suffix}"))
        raise SourceError(
            f"{path} is a directory, not a {suffix} file",
            remedy=f"name a file in it, such as {inside[0]}" if inside else f"name the {suffix} file",
            step="fetch",
        )
    if not path.is_file():
        raise SourceError(f"there is no file {os.path.normpath(path)}", remedy="check the path", step="fetch")
    return path


def looks_like_path(location: str) -> bool:
    """Whether a location cannot be a Hub id: it starts with a root, a dot or a home folder, or has more parts."""
    return location.startswith(("/", ".", "~")) or location.count("/") > 1
