"""Materials of a release: the source models and data sets that it was made from, and the tools that made it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any, Literal, get_args
from urllib.parse import quote

from plansmith.records.model import DataSet, SourceModel, SourceScheme
from plansmith.records.release import Manifest

DIGEST = "plansmith:digest"
"""Names plansmith's digest of a set of files: SHA-256 over their names and the SHA-256 of each."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_DATA = "https://huggingface.co/datasets"


@dataclass(frozen=True)
class BuildRun:
    """Build run: who made a release, since when, and with what.

    Attributes:
        builder: URI of the builder.
        started: when the compile began, with its time zone.
        tools: version by distribution.
    """

    builder: str
    started: datetime
    tools: Mapping[str, str]


@dataclass(frozen=True)
class Material:
    """Material: a source model or a data set.

    Attributes:
        kind: which of the two.
        ref: its name within the release, unique.
        name: its address or description, as a person knows it; of a folder or file of one's own, its name.
        uri: where exactly it came from; named by its content where nobody else can fetch it.
        revision: commit or version; empty if there is none.
        digest: of its files, see `DIGEST`.
        licence: as its author names it; empty if not stated.
        note: how it was used.
    """

    kind: Literal["model", "data"]
    ref: str
    name: str
    uri: str
    revision: str
    digest: str
    licence: str = ""
    note: str = ""

    @property
    def commit(self) -> str:
        """The Git commit; empty if the revision is none."""
        return self.revision if _COMMIT.fullmatch(self.revision) else ""


def materials_of(manifest: Manifest) -> tuple[Material, ...]:
    """Return the materials of a release: its own model and data first, then those of its companion models."""
    companions: Mapping[str, Mapping[str, Any]] = (manifest.spec.get("pipeline") or {}).get("models") or {}
    materials = list(_materials("", manifest.source, manifest.data, manifest.spec))
    for name, model in manifest.beside.items():
        materials += _materials(f":{name}", model.source, model.data, companions.get(name) or {})
    return tuple(materials)


def tools_of(manifest: Manifest, run: BuildRun) -> dict[str, str]:
    """Return the versions of the tools that made a release, by distribution; with TensorRT where it built plans."""
    engines = (manifest.engine, *(model.engine for model in manifest.beside.values()))
    versions = {plan.tensorrt for engine in engines for plan in engine.plans.values()}
    builders = {"tensorrt": ", ".join(sorted(versions))} if versions else {}
    return dict(sorted({**run.tools, **builders}.items()))


def without_folder(address: str) -> str:
    """Return a path, or a source that is one, by its name alone: where it lies on the machine concerns nobody else."""
    scheme, colon, location = address.rpartition(":")
    is_path = location.startswith(("/", "~", "..")) and (not colon or scheme in get_args(SourceScheme))
    return f"{scheme}{colon}{PurePath(location).name}" if is_path else address


def _materials(suffix: str, source: SourceModel, data: DataSet | None, spec: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the source of a model, and its data if there are any."""
    yield Material(
        kind="model",
        ref=f"source{suffix}",
        name=without_folder(source.address),
        uri=_source_uri(source),
        revision=source.revision or "",
        digest=source.digest,
        licence=source.licence or "",
        note="only its configuration: the weights were drawn at random" if source.random_weights else "",
    )
    if data is None:
        return
    dataset = ((spec.get("data") or {}).get("dataset") or "").partition("@")[0]
    evaluation = f", evaluation: {data.evaluation.count}" if data.evaluation else ""
    yield Material(
        kind="data",
        ref=f"data{suffix}",
        name=data.words,
        uri=f"{_HUB_DATA}/{quote(dataset)}" if dataset else _content_uri(data.digest),
        revision=data.revision or "",
        digest=data.digest,
        note=f"samples for calibration: {data.calibration.count}{evaluation}",
    )


def _source_uri(source: SourceModel) -> str:
    """Return the URI of a source: a package URL for a commit of the hub, a pinned address, or a digest."""
    if source.registered:
        return quote(source.pinned_address, safe=":/@")
    if source.revision:
        return f"pkg:huggingface/{quote(source.location)}@{quote(source.revision)}"
    return _content_uri(source.digest)


def _content_uri(digest: str) -> str:
    return f"urn:plansmith:digest:{quote(digest)}"
