"""Renamed copies of a release, which Triton treats as different models; also sent to a running server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from plansmith.errors import ServedCheckError, UsageError
from plansmith.formatting import format_bytes
from plansmith.records.model import Device
from plansmith.records.release import CONFIG_FILE, Manifest
from plansmith.sagemaker.signatures import ServedModel
from plansmith.triton.client.connection import SentModel
from plansmith.triton.config.ensemble import put_members
from plansmith.triton.config.model_config import parse_config, text_of, with_cpu_instances
from plansmith.triton.repository.ensembles import members_of_script, read_config
from plansmith.triton.repository.renamed import Content, RenamedRelease, renamed_contents
from plansmith.triton.server.control import ModelControlClient

_VERSION = 1
_TEXT_FILES = {".json", ".py"}
"""In which a script names the models that it asks."""

MAX_MESSAGE_BYTES = 2**31 - 2**20
"""Of the files of a model in one call: messages of gRPC have less than 2 GiB."""

_PAUSE_SECONDS = 0.02
_READY = "READY"
_LOADED_STATES = {_READY, "LOADING", "UNLOADING"}


@dataclass(frozen=True)
class ModelFolder:
    """Model folder in a repository.

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
        """The size of all files in bytes."""
        return sum(content.size for content in self.files.values())

    def write(self, folder: Path, put: Callable[[Path, Path], object] = shutil.copyfile) -> None:
        """Write the folder.

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
    """Release to be copied.

    Attributes:
        model: with its manifest, folder and signature.
        device: on which its copies run; "cpu" puts them there whatever it was compiled for.
    """

    model: ServedModel
    device: Device

    @property
    def manifest(self) -> Manifest:
        """The manifest of the release."""
        assert self.model.manifest is not None
        return self.model.manifest

    @property
    def release(self) -> str:
        """The release as the user types it: MODEL@VERSION."""
        return f"{self.manifest.name}@{self.manifest.version}"

    @property
    def is_script(self) -> bool:
        """Whether it is a script, which Triton loads without its companion models."""
        assert self.model.folder is not None
        return bool(members_of_script(read_config(self.model.folder)))

    @property
    def file_bytes(self) -> int:
        """The size of all files of a copy."""
        return sum(model.size for model in self.copy(self.manifest.name))

    def copy(self, name: str) -> tuple[ModelFolder, ...]:
        """Return the models of a copy; members come before their ensemble or script.

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
    """Return a file with the release's names replaced by those of the copy's members, which end in a digest."""
    if not members or PurePosixPath(path).suffix not in _TEXT_FILES:
        return content
    text = original = content.read_text()
    for old, new in members.items():
        text = text.replace(old, new)
    return content if text == original else Content.of(text.encode())


def require_sendable(model: ModelFolder) -> None:
    """Check that a model can be sent within its load call.

    Raises:
        UsageError: it is too large; or an ensemble, whose members Triton looks for in its repository.
    """
    problem = ""
    if model.size > MAX_MESSAGE_BYTES:
        problem = f"its files have {format_bytes(model.size)}, and a call that loads a model carries less than 2 GiB"
    elif parse_config(model.files[CONFIG_FILE].read_text()).HasField("ensemble_scheduling"):
        problem = "Triton looks for the members of an ensemble in its own repository"
    if problem:
        raise UsageError(
            f"{model.name} cannot be sent to a running server: {problem}",
            remedy="leave out --url, and measure on a machine like that of the server",
        )


def send(control: ModelControlClient, model: ModelFolder) -> None:
    """Load a model whose files are sent within the call.

    Raises:
        UsageError: it cannot be sent (`require_sendable`).
        ServedCheckError: the server refuses it, or takes too long.
        EnvironmentFault: the server cannot be asked.
    """
    from google.protobuf import json_format

    require_sendable(model)
    config = parse_config(model.files[CONFIG_FILE].read_text())
    files = {
        path: content.source.read_bytes() if isinstance(content.source, Path) else content.source
        for path, content in model.files.items()
        if path != CONFIG_FILE
    }
    # Triton makes a version's folder for a file in it, and takes no model without one.
    empty = [folder for folder in model.folders if not any(path.startswith(f"{folder}/") for path in files)]
    files |= {f"{folder}/.plansmith": b" " for folder in empty}
    control.change(
        "load", model.name, SentModel(json_format.MessageToJson(config, preserving_proto_field_name=True), files)
    )


def unload(control: ModelControlClient, models: Sequence[str], *, timeout_seconds: float) -> None:
    """Unload models in order, ensembles and scripts before their members, and wait until they are gone.

    Triton answers before a model is gone.

    Raises:
        ServedCheckError: the server refuses, or they are still there after the timeout.
        EnvironmentFault: it cannot be asked.
    """
    for model in models:
        control.change("unload", model)
    deadline = time.monotonic() + timeout_seconds
    while states := loaded_models(control, models):
        if time.monotonic() > deadline:
            raise ServedCheckError(
                f"{', '.join(states)} is still loaded {timeout_seconds:g} s after its unload",
                remedy="read the server's log",
            )
        time.sleep(_PAUSE_SECONDS)
        for model, state in states.items():
            if state == _READY:  # its load was under way when it was told to unload
                control.change("unload", model)


def loaded_models(control: ModelControlClient, models: Sequence[str]) -> dict[str, str]:
    """Return the models that a server still has or is unloading, with their states.

    The index of Triton 2.51 has no models that were sent: of these it is asked for the configuration.
    """
    rows = {row["name"]: row.get("state", "") for row in control.index() if row["name"] in models}
    states = {name: state for name, state in rows.items() if state in _LOADED_STATES}
    states |= {model: _READY for model in models if model not in rows and control.config(model) is not None}
    return states


def unload_leftovers(control: ModelControlClient, models: Sequence[str], *, timeout_seconds: float) -> None:
    """Unload models that a killed process left behind; errors as of `unload`."""
    left = loaded_models(control, models)
    if left:
        unload(control, [model for model in models if model in left], timeout_seconds=timeout_seconds)
