"""The records of a release, and of the run that made it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plansmith.records.destination import Publication
from plansmith.records.engine import BuildCheck, Engine
from plansmith.records.environment import PackedEnvironment
from plansmith.records.model import (
    SCHEMA_VERSION,
    DataSet,
    Dim,
    FileEntry,
    LoweredModel,
    OnnxModel,
    Record,
    SourceModel,
    Tensor,
)
from plansmith.records.pipeline import Pipeline, Script
from plansmith.records.validation import ServedReport, ValidationReport

CONFIG_FILE = "config.pbtxt"

MODEL_FOLDER = "model"
"""Holds, in a release, what a version's folder shows to Triton."""

BESIDE_FOLDER = "beside"
"""Holds, in a release, by name what is kept of how the models beside its own were judged."""


class Member(Record):
    """One Triton model of a release that is an ensemble.

    `model`: its name on Triton, which ends in a digest of its content, so that it never changes; `part`: its name in
    the pipeline; `folder`: where its configuration and the folder `model` of its version lie in the release; `backend`:
    Triton's name; the rest as in `Package`; `version`: the number of its one version.
    """

    model: str
    part: str
    folder: str
    backend: str
    model_files: tuple[str, ...]
    support_files: tuple[str, ...] = ()
    max_batch_size: int
    interface: Interface
    reshaped: dict[str, tuple[Dim, ...]] = Field(default_factory=dict)
    version: int = 1
    environment: PackedEnvironment | None = None

    @property
    def shown(self) -> dict[str, str]:
        """What Triton is shown of it: by place in the folder of the member's own model, the path in the release."""
        own = {name: f"{self.folder}/{name}" for name in (CONFIG_FILE, *self.support_files)}
        model = f"{self.folder}/{MODEL_FOLDER}"
        return own | {f"{self.version}/{name}": f"{model}/{name}" for name in self.model_files}

    def alone(self) -> Package:
        """The member as a release of its own, whose files lie in its folder."""
        return Package(
            model=self.model,
            config_file=CONFIG_FILE,
            model_files=self.model_files,
            support_files=self.support_files,
            max_batch_size=self.max_batch_size,
            interface=self.interface,
            reshaped=self.reshaped,
            environment=self.environment,
        )


class Package(Record):
    """A release in the making: the files that Triton will see and the interface they promise.

    `model_files`: in the folder of a version; `support_files`: beside its configuration, such as labels and the inputs
    of a warm-up; `interface`: as clients see it; `reshaped`: the model's own dims of the inputs and outputs that Triton
    reshapes, of which the interface has those that go over the wire; `capability_files`: of a release with several
    plans, the file for each compute capability; `server_arguments`: what the server has to be started with besides,
    which for SageMaker goes into SAGEMAKER_TRITON_ADDITIONAL_ARGS; `members`: the models that an ensemble asks, in the
    order of its steps; none of a release that is one model; `environment`: what a Python model brings with it, where it
    is not left to the image; `decoupled`: a request may get several answers.
    """

    model: str
    config_file: str
    model_files: tuple[str, ...]
    support_files: tuple[str, ...] = ()
    max_batch_size: int
    interface: Interface
    reshaped: dict[str, tuple[Dim, ...]] = Field(default_factory=dict)
    capability_files: dict[str, str] = Field(default_factory=dict)
    server_arguments: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    environment: PackedEnvironment | None = None
    decoupled: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that Triton sees, from the release's folder: its own, and those of its members."""
        own = (self.config_file, *self.support_files, *(f"{MODEL_FOLDER}/{file}" for file in self.model_files))
        return (*own, *(file for member in self.members for file in member.shown.values()))

    @property
    def has_dali(self) -> bool:
        """Whether one of the members is a DALI pipeline."""
        return any(member.backend == "dali" for member in self.members)

    def part(self, name: str) -> Member:
        """The member of a name in the pipeline; raises KeyError where there is none."""
        found = {member.part: member for member in self.members}
        return found[name]

    @property
    def named_files(self) -> tuple[str, dict[str, str]]:
        """What the configuration names in a version's folder: one file, and that for each compute capability."""
        return self.model_files[0].partition("/")[0], self.capability_files


class Interface(Record):
    """What clients rely on: a version with another interface must not stand beside this one."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class StepRecord(Record):
    """How one step went."""

    name: str
    seconds: float
    cached: bool


class ReleasedModel(Record):
    """A model of a release beside the release's own: what it came from, and what was found of it."""

    source: SourceModel
    onnx: OnnxModel
    data: DataSet | None
    lowered: LoweredModel
    engine: Engine
    validation: ValidationReport
    pipeline: Pipeline


class Manifest(Record):
    """Everything about one release, as one JSON file in it."""

    schema_version: int = SCHEMA_VERSION
    name: str
    version: int
    created: str
    plansmith: str
    target: str
    release_digest: str
    spec: dict[str, Any]
    source: SourceModel
    onnx: OnnxModel
    data: DataSet | None = None
    lowered: LoweredModel | None = None  # of releases older than this field
    engine: Engine
    pipeline: Pipeline | None = None
    beside: dict[str, ReleasedModel] = Field(default_factory=dict)
    script: Script | None = None
    package: Package
    validation: ValidationReport
    served: ServedReport | None
    files: tuple[FileEntry, ...]
    steps: tuple[StepRecord, ...]


class PublishedVersion(Record):
    """Where a release stands now; `publications`: in which stores, besides."""

    name: str
    version: int
    repository: str
    release: str
    manifest_digest: str
    published: str
    unchanged: bool
    publications: tuple[Publication, ...] = ()


LOWERED_FILE = "lowered.json"


class LoweredGraph(Record):
    """What lies in the folder that `plansmith lower` wrote, and what is known of it."""

    name: str
    folder: str
    lowered: LoweredModel
    data: DataSet | None
    validation: ValidationReport
    build_check: BuildCheck | None = None


MANIFEST_FILE = "manifest.json"

OWN_NAMES = {
    "build.log",
    "config.pbtxt",
    "configs",
    "initial_state",
    "manifest.json",
    "members",
    "model",
    "reference",
    "report.html",
    "reproduce.sh",
    "spec.yaml",
    "warmup",
}
"""What is called so in a release, or by Triton beside a configuration; no file of the user's own may be."""
