"""A model's folder in a repository as a check sees it, and what the check knows besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.manifest import Manifest
from plansmith.targets import Target

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


@dataclass(frozen=True)
class ModelFolder:
    """One model.

    Args:
        name: of the folder, and so of the model.
        path: of the folder.
        config: its configuration as it is written; None where there is none, or none that can be read.
        text: of the configuration; empty where there is none.
        versions: the folders of its versions that Triton takes for such, by number, ascending.
        loaded: the versions that its version policy has Triton load.
        manifests: of the versions that plansmith made.
    """

    name: str
    path: Path
    config: pb.ModelConfig | None
    text: str
    versions: Mapping[int, Path]
    loaded: tuple[int, ...]
    manifests: Mapping[int, Manifest]

    def place(self, file: str = "config.pbtxt") -> str:
        """A file of the model, relative to the repository."""
        return f"{self.name}/{file}"

    def line_of(self, words: str) -> int:
        """The first line of the configuration that has such words, from 1; 0 where none has."""
        return next((number for number, line in enumerate(self.text.splitlines(), 1) if words in line), 0)


@dataclass(frozen=True)
class Surroundings:
    """What models are checked against.

    Args:
        models: every model of the repository, by name.
        target: what it will be served by; None where nobody says.
        sagemaker: it is for SageMaker's front end.
        arguments: what the server is started with besides, such as "--backend-config=tensorrt,version-compatible=true".
    """

    models: Mapping[str, ModelFolder]
    target: Target | None = None
    sagemaker: bool = False
    arguments: tuple[str, ...] = ()
