"""What happened in a model registry, as far as a build cares; whoever told it, and however often."""

from __future__ import annotations

from typing import Literal

from plansmith.config.service.triggers import Change
from plansmith.records.model import Record
from plansmith.system.digest import digest_of

RegistryKind = Literal["mlflow", "hub", "sagemaker", "s3", "folder", "hook"]

OWN_TAGS = "plansmith."
"""How the names begin that are written back to a registry: what they say of a build starts no other."""


class Event(Record):
    """One thing that happened.

    `registry`: the name of the registry in the service's file. `model`: its name there: of a registered model, a
    repository of the hub, a package group, a folder below a prefix. `version`: what names this content for good: an
    MLflow version, a commit, the ARN of a package, a digest. `change` and `value`: what happened, such as alias
    "champion", tag "compile=requested", branch "refs/heads/main". `source`: the spec's source for exactly this content,
    such as mlflow:models:/ranker/3 or hf:org/model@<commit>; empty where the spec's own stays. `at`: when it happened,
    as a Unix time, where the registry says so; 0 where it does not. `wrong`: why nothing can be built of it, in a few
    words of ours; empty where something can.
    """

    registry: str
    model: str
    version: str
    change: Change
    value: str = ""
    source: str = ""
    at: float = 0
    wrong: str = ""

    @property
    def content_key(self) -> str:
        """A digest of what is to be built, whatever told of it: the same for a delivery, its repetition and a poll."""
        return digest_of([self.registry, self.model, self.version, self.source])

    @property
    def is_current(self) -> bool:
        """Whether it tells what something stands for now, so that the next of its kind takes its place.

        A tag, a version that was made and a package that was approved stay beside those that come after them.
        """
        return self.change in {"alias", "stage", "branch", "ready", "asked"}

    @property
    def is_revocable(self) -> bool:
        """Whether it may be taken back though nothing takes its place: a package is rejected that was approved."""
        return self.change == "approved"

    @property
    def tracking_sources(self) -> frozenset[str]:
        """Sources of specs that name what it tells of, whatever version that stands for."""
        kind, _, rest = self.source.partition(":")
        if kind == "mlflow":
            wanted = {"alias": f"@{self.value}", "created": "/latest"}.get(self.change)
            return frozenset({f"mlflow:models:/{self.model}{wanted}"} if wanted else ())
        if self.change == "branch":
            name = self.value.removeprefix("refs/heads/").removeprefix("refs/tags/")
            main = {f"hf:{self.model}"} if self.value == "refs/heads/main" else set()
            return frozenset({f"hf:{self.model}@{name}", *main})
        return frozenset({f"s3:{rest.rpartition('@')[0]}"} if kind == "s3" and self.change == "ready" else ())

    @property
    def topic(self) -> str:
        """What it tells of: an alias, a branch, …; of one topic the newest counts."""
        return f"{self.change} {self.value}".strip()

    @property
    def words(self) -> str:
        """It in a few words, for a person."""
        return f"{self.model}, version {self.version} ({self.topic})"
