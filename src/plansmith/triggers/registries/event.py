"""What happened in a model registry, as far as a build cares; whoever told it, and however often."""

from __future__ import annotations

from typing import Literal

from plansmith.config.service.triggers import Change
from plansmith.records.model import Record
from plansmith.system.digest import digest_of

RegistryKind = Literal["mlflow", "hub", "sagemaker", "s3", "folder", "hook"]


class Event(Record):
    """One thing that happened.

    `registry`: the name of the registry in the service's file. `model`: its name there: of a registered model, a
    repository of the hub, a package group, a folder below a prefix. `version`: what names this content for good: an
    MLflow version, a commit, the ARN of a package, a digest. `change` and `value`: what happened, such as alias
    "champion", tag "compile=requested", branch "refs/heads/main". `source`: the spec's source for exactly this content,
    such as mlflow:models:/ranker/3 or hf:org/model@<commit>; empty where the spec's own stays.
    """

    registry: str
    model: str
    version: str
    change: Change
    value: str = ""
    source: str = ""

    @property
    def content_key(self) -> str:
        """A digest of what is to be built, whatever told of it: the same for a delivery, its repetition and a poll."""
        return digest_of([self.registry, self.model, self.version, self.source])

    @property
    def words(self) -> str:
        """It in a few words, for a person."""
        how = f"{self.change} {self.value}".strip()
        return f"{self.model}, version {self.version} ({how})"
