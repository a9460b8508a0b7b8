"""A model's folder in a repository as a check sees it, and what the check knows besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.manifest import Manifest
from plansmith.targets import Target
from plansmith.triton.model_config import CONFIG_FILE

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
        config_file: what the configuration was read from, relative to the model's folder.
        backend: what serves it, as Triton completes the configuration by the files; empty where it cannot tell, and for
            ensembles.
        platform: likewise, such as "tensorrt_plan" or "ensemble".
        model_file: the file, or folder, of a version that the backend opens, likewise; `cc_model_filenames` may have
            others for some GPUs.
    """

    name: str
    path: Path
    config: pb.ModelConfig | None
    text: str
    versions: Mapping[int, Path]
    loaded: tuple[int, ...]
    manifests: Mapping[int, Manifest]
    config_file: str = CONFIG_FILE
    backend: str = ""
    platform: str = ""
    model_file: str = ""

    def place(self, file: str = "") -> str:
        """A file of the model, relative to the repository; the configuration where none is named."""
        return f"{self.name}/{file or self.config_file}"

    def line_of(self, words: str) -> int:
        """The first line of the configuration that has such words, from 1; 0 where none has."""
        return next((number for number, line in enumerate(self.text.splitlines(), 1) if words in line), 0)


@dataclass(frozen=True)
class Surroundings:
    """What models are checked against.

    Args:
        root: the folder of the repository.
        models: every model of the repository, by name, those too that nobody asked about.
        target: what it will be served by; None where nobody says.
        sagemaker: it is for SageMaker's front end.
        arguments: what the server is started with besides, such as "--backend-config=tensorrt,version-compatible=true".
    """

    root: Path
    models: Mapping[str, ModelFolder]
    target: Target | None = None
    sagemaker: bool = False
    arguments: tuple[str, ...] = ()
