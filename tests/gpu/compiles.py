"""Compiles through the command line, as a user runs them: a spec in a folder, words, an exit code, a release."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..support.cli.command import COMMAND, Answer, environment
from .machine import TRITON_BACKEND
from .subjects import Subject

LONGEST_SECONDS = 3600
MAGIC = b"ftrt"


@dataclass(frozen=True)
class Release:
    """One that a compile published.

    Args:
        folder: the release's own.
        document: what the compile printed.
    """

    folder: Path
    document: dict[str, Any]

    @property
    def manifest(self) -> dict[str, Any]:
        """All that is known of it."""
        document: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return document

    @property
    def plan(self) -> dict[str, Any]:
        """The record of its only plan."""
        (plan,) = self.manifest["engine"]["plans"].values()
        assert isinstance(plan, dict)
        return plan

    @property
    def plan_file(self) -> Path:
        """The plan that Triton loads."""
        (file,) = (self.folder / "model").rglob("*.plan")
        return file

    def cached(self) -> dict[str, bool]:
        """Which steps were found done."""
        return {step["name"]: step["cached"] for step in self.document["steps"]}


class Workshop:
    """A folder in which compiles share artifacts.

    Args:
        folder: the working directory.
        target: of every compile.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self.target = target

    @property
    def artifacts(self) -> Path:
        """Where cache, logs and repository lie."""
        return self.folder / "artifacts"

    def command_line(self, subject: Subject, *arguments: str, **keys: Any) -> list[str]:
        """The command line of a compile, its spec written; `keys` are those of the spec's `tensorrt`.

        Speed is told and decides nothing: which precision is the fastest depends on the GPU.
        """
        spec = subject.spec(engine="tensorrt", target=self.target, tensorrt={"speed_check": False, **keys})
        path = self.folder / f"{subject.name}.yaml"
        path.write_text(yaml.safe_dump(spec))
        served = [] if TRITON_BACKEND.is_file() else ["--no-check-served"]
        return ["compile", str(path), "--artifacts", str(self.artifacts), *served, *arguments]

    def run(self, words: list[str], **variables: str) -> Answer:
        """Run a command line to its end."""
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def compile(self, subject: Subject, *arguments: str, **keys: Any) -> Release:
        """A compile that must succeed."""
        return released(self.run([*self.command_line(subject, *arguments, **keys), "--json"]))


def released(answer: Answer) -> Release:
    """What a compile that must have succeeded published."""
    assert answer.status == 0, answer
    return Release(Path(answer.document["model_path"]), answer.document)


def version_in(plan: Path) -> str:
    """TensorRT's version by the plan's own first bytes, as trtexec --getPlanVersionOnly reads them."""
    with plan.open("rb") as stream:
        header = stream.read(28)
    assert header[:4] == MAGIC, header
    return ".".join(str(number) for number in header[24:28])
