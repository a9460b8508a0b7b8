"""The source of a released model: which version of a registry, which commit of the hub, which file."""

from __future__ import annotations

import re

from plansmith.fleet.text import from_here
from plansmith.records.model import Record
from plansmith.records.release import Manifest

_DIGEST = re.compile(r"[0-9a-f]{40,64}")
_SHORT_LETTERS = 7
_REGISTRY_SCHEME = "mlflow:"


class ReleaseSource(Record):
    """Where a released model came from.

    Attributes:
        address: as a source is typed in a spec, without the revision.
        revision: the version in a registry or the commit of the hub; None of a folder or file.
        random_weights: only its architecture came from there.
        companion_count: how many more models the release has.
    """

    address: str
    revision: str | None
    random_weights: bool
    companion_count: int

    @property
    def label(self) -> str:
        """A short form: `mlflow:models:/ranker/3`, `hf:org/ranker@1a2b3c4`, `timm:resnet18 (random weights)`."""
        more = f" and {self.companion_count} more" if self.companion_count else ""
        return f"{self._pinned}{' (random weights)' if self.random_weights else ''}{more}"

    @property
    def _pinned(self) -> str:
        scheme, _, path = self.address.partition(":")
        if self.revision is None:
            return f"{scheme}:{from_here(path)}"
        if self.address.startswith(_REGISTRY_SCHEME):
            return f"{self.address}/{self.revision}"
        revision = self.revision
        return f"{self.address}@{revision[:_SHORT_LETTERS] if _DIGEST.fullmatch(revision) else revision}"


def source_of_release(manifest: Manifest) -> ReleaseSource:
    """The source of a release's model; its companion models are counted."""
    source = manifest.source
    return ReleaseSource(
        address=source.address,
        revision=source.revision,
        random_weights=source.random_weights,
        companion_count=len(manifest.beside),
    )
