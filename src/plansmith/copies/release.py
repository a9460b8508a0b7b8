"""Renamed copies of a release: for Triton different models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from plansmith.records.model import Device
from plansmith.records.release import CONFIG_FILE, Manifest
from plansmith.sagemaker.signatures import ServedModel
from plansmith.triton.config.members import put_members
from plansmith.triton.config.model_config import parse_config, text_of, with_cpu_instances
from plansmith.triton.repository.ensembles import members_of_script, read_config
from plansmith.triton.repository.renamed import Content, RenamedRelease, renamed_contents

_VERSION = 1
_TEXT_FILES = {".json", ".py"}
"""In which a script names the models that it asks."""


@dataclass(frozen=True)
class ModelFolder:
    """A model's folder in a repository.

    Attributes:
        name: of the model.
        files: by their paths in it.
        folders: that have to be there even where they are empty.
    """

    name: str
    files: Mapping[str, Content]
    folders: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """Of all files, in bytes."""
        return sum(content.size for content in self.files.values())

    def write(self, folder: Path, put: Callable[[Path, Path], object] = shutil.copyfile) -> None:
        """Write it.

        Args:
            folder: its own, which is there and empty.
            put: puts a file into its place, given its source and that place, whose folder is there.
        """
        for name in self.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for path, content in self.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content.source, bytes):
                file.write_bytes(content.source)
            else:
                put(content.source, file)


@dataclass(frozen=True)
class CopiedRelease:
    """A release that is copied.

    Attributes:
        model: with its manifest, folder and signature.
        device: on which its copies run; "cpu" puts them there whatever it was compiled for.
    """

    model: ServedModel
    device: Device

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        assert self.model.manifest is not None
        return self.model.manifest

    @property
    def release(self) -> str:
        """It as it is typed: MODEL@VERSION."""
        return f"{self.manifest.name}@{self.manifest.version}"

    @property
    def is_script(self) -> bool:
        """Whether it is a script, which Triton loads without the models that it asks."""
        assert self.model.folder is not None
        return bool(members_of_script(read_config(self.model.folder)))

    @property
    def file_bytes(self) -> int:
        """The size of all files of a copy."""
        return sum(model.size for model in self.copy(self.manifest.name))

    def copy(self, name: str) -> tuple[ModelFolder, ...]:
        """The models of a copy: members of an ensemble or script before itself.

        Args:
            name: of the copy, with which the names of its members begin.

        Raises:
            RepositoryError: the release is damaged, or its configuration cannot be read.
        """
        assert self.model.folder is not None
        archived = RenamedRelease(self.manifest, self.model.folder, name, _VERSION)
        members = {
            member.model: f"{name}{member.model.removeprefix(self.manifest.name)}"
            for member in self.manifest.package.members
        }
        names = {**members, name: name}
        files: dict[str, dict[str, Content]] = {model: {} for model in names}
        for path, content in renamed_contents([archived]).items():
            model, _, inner = path.partition("/")
            files[model][inner] = _renamed_text(inner, content, members)
        folders: dict[str, set[str]] = {model: set() for model in names}
        for path in archived.version_folders:
            model, _, inner = path.partition("/")
            folders[model].add(inner)
        return tuple(
            ModelFolder(new, self._configured(files[old], new, members), frozenset(folders[old]))
            for old, new in names.items()
        )

    def _configured(self, files: Mapping[str, Content], name: str, members: Mapping[str, str]) -> dict[str, Content]:
        text = files[CONFIG_FILE].read_text()
        config = parse_config(with_cpu_instances(text) if self.device == "cpu" else text)
        config.name = name
        for step in config.ensemble_scheduling.step:
            step.model_name = members.get(step.model_name, step.model_name)
        if members_of_script(config):
            put_members(config, [members.get(member, member) for member in members_of_script(config)])
        return {**files, CONFIG_FILE: Content.of(text_of(config).encode())}


def _renamed_text(path: str, content: Content, members: Mapping[str, str]) -> Content:
    """A file with the names of the copy's members, which end in a digest each, in place of the release's."""
    if not members or PurePosixPath(path).suffix not in _TEXT_FILES:
        return content
    text = original = content.read_text()
    for old, new in members.items():
        text = text.replace(old, new)
    return content if text == original else Content.of(text.encode())
