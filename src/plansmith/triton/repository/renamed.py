"""Renamed releases: files in a repository or archive under another name and number, by their paths there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import RepositoryError, first_line
from plansmith.pipelines.draft import REQUIREMENTS_FILE
from plansmith.records.engine import Engine
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.repository.ensembles import bytecode_stops, members_of_script, read_config, require_named


@dataclass(frozen=True)
class Content:
    """The content of a file.

    Attributes:
        source: the file, or the bytes themselves.
        size: in bytes.
        sha256: as the release has it.
    """

    source: Path | bytes
    size: int
    sha256: str

    @staticmethod
    def of(content: bytes) -> Content:
        """Return the content of some bytes."""
        return Content(content, len(content), hashlib.sha256(content).hexdigest())

    def read_text(self) -> str:
        """Return the content as text."""
        return self.source.decode() if isinstance(self.source, bytes) else self.source.read_text(encoding="utf-8")


@dataclass(frozen=True)
class RenamedRelease:
    """A release under another name and number.

    Attributes:
        manifest: the release's.
        folder: the release's.
        name: the model's new one.
        number: the version's new one.
    """

    manifest: Manifest
    folder: Path
    name: str
    number: int

    @property
    def release(self) -> str:
        """The release as typed on the command line: MODEL@VERSION."""
        return f"{self.manifest.name}@{self.manifest.version}"

    @property
    def models(self) -> tuple[str, ...]:
        """The model folders: the release's own, then those of its members."""
        return (self.name, *(member.model for member in self.manifest.package.members))

    @property
    def version_folders(self) -> frozenset[str]:
        """The version folders, which must exist even if they are empty."""
        members = self.manifest.package.members
        return frozenset({f"{self.name}/{self.number}", *(f"{member.model}/{member.version}" for member in members)})

    @property
    def engines(self) -> list[Engine]:
        """The engines of all its models."""
        return [self.manifest.engine, *(model.engine for model in self.manifest.beside.values())]

    def script_members(self) -> list[str]:
        """Return the members that the release's script calls, which Triton loads only on request."""
        return members_of_script(read_config(self.folder))

    def image_packages(self) -> dict[str, tuple[str, ...]]:
        """Return the packages that models without their own environment need in the image's Python, by model."""
        package = self.manifest.package
        own = (self.name, package.environment, MODEL_FOLDER, package.model_files)
        members = [(m.model, m.environment, f"{m.folder}/{MODEL_FOLDER}", m.model_files) for m in package.members]
        return {
            model: tuple((self.folder / folder / REQUIREMENTS_FILE).read_text().split())
            for model, environment, folder, files in (own, *members)
            if environment is None and REQUIREMENTS_FILE in files
        }


def renamed_contents(releases: Iterable[RenamedRelease]) -> dict[str, Content]:
    """Return the files of releases by path in a repository of these releases alone.

    Raises:
        RepositoryError: a release lacks a file, or its configuration cannot be read.
    """
    return {path: content for release in releases for path, content in _contents(release).items()}


def _contents(release: RenamedRelease) -> dict[str, Content]:
    package = release.manifest.package
    paths = {f"{release.name}/{name}": name for name in (CONFIG_FILE, *package.support_files)}
    paths |= {f"{release.name}/{release.number}/{name}": f"{MODEL_FOLDER}/{name}" for name in package.model_files}
    stops: list[str] = []
    for member in require_named(release.manifest.name, package.members):
        paths |= {f"{member.model}/{name}": path for name, path in member.shown.items()}
        stops += [f"{member.model}/{name}" for name in bytecode_stops(member.shown)]
    published = {file.path: file for file in release.manifest.files}
    contents = dict[str, Content]()
    for path, name in paths.items():
        entry, source = published.get(name), release.folder / name
        if entry is None or not source.is_file() or source.stat().st_size != entry.bytes:
            raise RepositoryError(
                f"{release.release} is damaged: {name} is missing or not what was published",
                remedy="name another version, or compile the model again",
            )
        contents[path] = Content(source, entry.bytes, entry.sha256)
    return contents | dict.fromkeys(stops, Content.of(b"")) | _rewritten_config(release)


def _rewritten_config(release: RenamedRelease) -> dict[str, Content]:
    """The configuration with the new name and version; empty where it is correct as it is."""
    from google.protobuf.text_format import ParseError

    path = release.folder / CONFIG_FILE
    try:
        config = parse_config(path.read_text())
    except (OSError, ValueError, ParseError) as error:
        raise RepositoryError(
            f"{path} cannot be read: {first_line(error)}", remedy="name another version, or compile the model again"
        ) from error
    published = text_of(config)
    if release.name != release.manifest.name:
        config.name = release.name
    if config.version_policy.HasField("specific"):  # there is one version
        config.version_policy.specific.versions[:] = [release.number]
    text = text_of(config)
    return {} if text == published else {f"{release.name}/{CONFIG_FILE}": Content.of(text.encode())}
