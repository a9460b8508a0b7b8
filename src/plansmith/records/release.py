"""Release records, with those of the run that made the release."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from plansmith.records.destination import Publication
from plansmith.records.engine import BuildCheck, Engine
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

_Composed = TypeVar("_Composed", Engine, LoweredModel)

Cause = Literal["new", "forced", "release", "spec", "source", "data", "target", "tools", "destination"]
"""Why a model is built: there is no version, it was asked for, the version is missing or damaged, what it is made of
changed, or a destination does not have it."""

CONFIG_FILE = "config.pbtxt"
MODEL_FOLDER = "model"
"""Holds, in a release, what a version's folder shows to Triton."""

BESIDE_FOLDER = "beside"
"""Holds, in a release, by name what is kept of how the models beside its own were judged."""

LOWERED_FILE = "lowered.json"
REPORT_FILE = "report.html"
MANIFEST_FILE = "manifest.json"
PROVENANCE_FILE = "provenance.intoto.json"
BOM_FILE = "bom.cdx.json"
SIGNATURE_FILE = "model.sig"
OWN_NAMES = {
    "bom.cdx.json",
    "build.log",
    "config.pbtxt",
    "configs",
    "initial_state",
    "manifest.json",
    "members",
    "model",
    "model.sig",
    "provenance.intoto.json",
    "reference",
    "report.html",
    "reproduce.sh",
    "spec.yaml",
    "warmup",
}
"""What is called so in a release, or by Triton beside a configuration; no file of the user's own may be."""


def _require_model(value: _Composed) -> _Composed:
    if "model" not in value.components:
        raise ValueError("has no component 'model'")
    return value


WithModel = AfterValidator(_require_model)
"""Of an engine or a lowered model in a release: it has the model itself."""


class PackedDistribution(Record):
    """Distribution in a packed environment; `sha256` is that of its wheel."""

    name: str
    version: str
    wheel: str
    sha256: str


class PackedEnvironment(Record):
    """Packed environment: an archive that Triton unpacks before it starts a Python model.

    `file`: its name; `python`: the Python that it is for, such as "3.12"; `machine` and `glibc`: likewise, such as
    "x86_64" and "2.34", the newest that a wheel in it may need; `bytes` and `unpacked_bytes`: what it takes;
    `distributions`: all that is in it.
    """

    file: str
    python: str
    machine: str
    glibc: str
    bytes: int
    unpacked_bytes: int
    distributions: tuple[PackedDistribution, ...]


class Reason(Record):
    """Reason to build a model; `words` name the change, such as "torch 2.9.1 -> 2.10.0"."""

    cause: Cause
    words: str


class SourceOverride(Record):
    """Source override: set by a registry event in place of the spec's source."""

    replaces: str = Field(description="The source that the spec names.")
    is_tracked: bool = Field(
        default=False, description="The spec's own source names what the event reported, such as its alias."
    )
    at: float = Field(default=0, description="When the event came, as a Unix time: a later one wins.")


class Fingerprint(Record):
    """Fingerprint: all that decides the result of a compile, found without doing its work.

    It is taken before the first step, and written when the compile has ended with a version, also where that stood
    already: a rebuild that changes nothing is not asked for again.

    `spec`: the values that decide the result, without those that only say how to go about it. `source`: the digest of
    the files of the model, where they are a person's own; `weights`: the names of those beside an ONNX graph.
    `revision`: the commit of a hub or the version in a registry, and `hub_id` the model's name there. `data`: a digest,
    or a commit, of the data set; empty without one. `target`: a digest of the target's description. `tools`: by
    distribution its version, and by step, as "code of export", the digest of plansmith's own code. `destinations`:
    where the version was published to; `stored`: by destination the digest of the release there. `beside`: by name,
    the release's other models. `source_override`: how an event of a registry set the source, where one did.

    What is empty is not known here, or there is none.
    """

    schema_version: int = SCHEMA_VERSION
    version: int
    spec: dict[str, Any]
    source: str
    revision: str
    data: str
    target: str
    tools: dict[str, str]
    destinations: tuple[str, ...]
    weights: tuple[str, ...] = ()
    hub_id: str = ""
    source_override: SourceOverride | None = None
    stored: dict[str, str] = Field(default_factory=dict)
    beside: dict[str, Fingerprint] = Field(default_factory=dict)


class Member(Record):
    """Ensemble member: one Triton model of a release that is an ensemble.

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
        """The member's files as Triton sees them: path in the member's model folder to path in the release."""
        own = {name: f"{self.folder}/{name}" for name in (CONFIG_FILE, *self.support_files)}
        model = f"{self.folder}/{MODEL_FOLDER}"
        return own | {f"{self.version}/{name}": f"{model}/{name}" for name in self.model_files}

    def alone(self) -> Package:
        """Return the member as a standalone release, whose files are in its folder."""
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
    """Package: a release being built, with the files that Triton will see and their promised interface.

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
        """All files that Triton sees, by path in the release folder: its own, and those of its members."""
        own = (self.config_file, *self.support_files, *(f"{MODEL_FOLDER}/{file}" for file in self.model_files))
        return (*own, *(file for member in self.members for file in member.shown.values()))

    @property
    def has_dali(self) -> bool:
        """Whether a member is a DALI pipeline."""
        return any(member.backend == "dali" for member in self.members)

    def part(self, name: str) -> Member:
        """Return the member with a name in the pipeline; raises KeyError if it does not exist."""
        members_by_part = {member.part: member for member in self.members}
        return members_by_part[name]

    @property
    def named_files(self) -> tuple[str, dict[str, str]]:
        """The files that the configuration names in a version folder: a default, and one per compute capability."""
        return self.model_files[0].partition("/")[0], self.capability_files


class Interface(Record):
    """Interface for clients: versions with different interfaces must not be served together."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class StepRecord(Record):
    """Record of one step."""

    name: str
    seconds: float
    cached: bool


class ReleasedModel(Record):
    """Additional model of a release: its source and its results."""

    source: SourceModel
    onnx: OnnxModel
    data: DataSet | None
    lowered: LoweredModel
    engine: Annotated[Engine, WithModel]
    validation: ValidationReport
    pipeline: Pipeline


class Manifest(Record):
    """Manifest: everything about one release, as one JSON file in it."""

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
    engine: Annotated[Engine, WithModel]
    pipeline: Pipeline | None = None
    beside: dict[str, ReleasedModel] = Field(default_factory=dict)
    script: Script | None = None
    package: Package
    validation: ValidationReport
    served: ServedReport | None
    files: tuple[FileEntry, ...]
    steps: tuple[StepRecord, ...]


class PublishedVersion(Record):
    """Published version: a release's current location; `publications`: additionally in which stores."""

    name: str
    version: int
    repository: str
    release: str
    manifest_digest: str
    published: str
    unchanged: bool
    publications: tuple[Publication, ...] = ()


class LoweredGraph(Record):
    """Lowered graph in a folder written by `plansmith lower`, with its metadata."""

    name: str
    folder: str
    lowered: Annotated[LoweredModel, WithModel]
    data: DataSet | None
    validation: ValidationReport
    build_check: BuildCheck | None = None
