"""A model's folder in a repository as a check sees it, and what the check knows besides."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.target.targets import Target
from plansmith.records.release import CONFIG_FILE, Manifest
from plansmith.triton.checker.findings import Finding, Rule

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

    def typed(self, file: str = "") -> str:
        """A file of the model, or its folder, as it is typed into a shell from wherever that is."""
        return shlex.quote(str((self.path / file).absolute()))

    def line_of(self, *words: str) -> int:
        """The line of the configuration that has such words, each looked for from where the one before was found.

        Returns:
            The line of the last of them, from 1; 0 where one is not there.
        """
        lines, number = self.text.splitlines(), 1 if words else 0
        for one in words:
            number = next((n for n, line in enumerate(lines[number - 1 :], number) if one in line), 0)
            if not number:
                return 0
        return number

    def faulted(self, rule: Rule, message: str, *words: str, remedy: str) -> Finding:
        """The finding that the configuration breaks a rule, at the line that has such words."""
        return rule.broken(message, model=self.name, place=self.place(), line=self.line_of(*words), remedy=remedy)


@dataclass(frozen=True)
class CheckContext:
    """What models are checked against.

    Args:
        root: the folder of the repository.
        models: every model of the repository, by name, those too that nobody asked about.
        target: what it will be served by; None where nobody says.
        sagemaker: it is for SageMaker's front end.
        dynamo: it is for NVIDIA Dynamo's worker.
        arguments: what the server is started with besides, such as "--backend-config=tensorrt,version-compatible=true".
    """

    root: Path
    models: Mapping[str, ModelFolder]
    target: Target | None = None
    sagemaker: bool = False
    dynamo: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def is_for_sagemaker(self) -> bool:
        """Whether the repository is to be served by SageMaker."""
        return self.sagemaker or (self.target is not None and self.target.flavour == "sagemaker")

    def loads(self, model: str) -> bool:
        """Whether the server loads a model when it starts: all of them, unless it is told to load named ones alone."""
        if self.is_for_sagemaker:
            return False  # its start script counts folders, and names the one to load
        if self.argument("model-control-mode")[-1:] != ("explicit",):
            return True
        return not {model, "*"}.isdisjoint(self.argument("load-model"))

    def argument(self, name: str) -> tuple[str, ...]:
        """The values of an argument of the server, such as "backend-config", in their order; "" where it has none."""
        pairs = zip(self.arguments, (*self.arguments[1:], ""), strict=False)
        found = []
        for given, following in pairs:
            key, equals, value = given.partition("=")
            if key == f"--{name}":
                found.append(value if equals or following.startswith("--") else following)
        return tuple(found)
