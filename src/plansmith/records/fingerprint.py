"""What a published version was made from: kept beside the releases, so that a later look can say what changed since."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plansmith.records.model import SCHEMA_VERSION, Record

Cause = Literal["new", "forced", "release", "spec", "source", "data", "target", "tools", "destination"]
"""Why a model is built: there is no version, it was asked for, the version is missing or damaged, what it is made of
changed, or a destination does not have it."""


class Reason(Record):
    """One reason to build a model; `words` say what differs, such as "torch 2.9.1 -> 2.10.0"."""

    cause: Cause
    words: str


class SourceOverride(Record):
    """The source that an event of a registry set in place of the one that a spec names."""

    replaces: str = Field(description="The source that the spec names.")
    is_tracked: bool = Field(
        default=False, description="The spec's own source names what the event reported, such as its alias."
    )
    at: float = Field(default=0, description="When the event came, as a Unix time: a later one wins.")


class Fingerprint(Record):
    """All that decides what a compile makes, found without doing any of its work.

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
