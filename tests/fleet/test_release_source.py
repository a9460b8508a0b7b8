"""The source of a release, in few words: which version of a registry, commit of the hub, folder or file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.fleet.status import source_of_release
from plansmith.records.release import ReleasedModel

from ..support.faults.packages import draft_of, source_model, write_package

COMMIT = "1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d"
SOURCES: dict[str, tuple[dict[str, Any], str]] = {
    "a version of MLflow": (
        {"scheme": "hf", "location": "/cache/3", "registered": "mlflow:models:/ranker", "revision": "3"},
        "mlflow:models:/ranker/3",
    ),
    "what was in a bucket": (
        {"scheme": "onnx", "location": "/cache/b", "registered": "s3://models/ranker", "revision": "5" * 64},
        "s3://models/ranker@5555555",
    ),
    "a commit of the hub": ({"scheme": "hf", "location": "org/x", "revision": COMMIT}, "hf:org/x@1a2b3c4"),
    "a hub model that was named otherwise": ({"scheme": "hf", "location": "org/x", "revision": "v1"}, "hf:org/x@v1"),
    "random weights": (
        {"scheme": "timm", "location": "resnet18", "random_weights": True},
        "timm:resnet18 (random weights)",
    ),
    "a folder from here": ({"scheme": "hf", "location": "HERE/models/x"}, "hf:models/x"),
    "a file elsewhere": ({"scheme": "onnx", "location": "/srv/x.onnx"}, "onnx:/srv/x.onnx"),
}


@pytest.mark.parametrize(("values", "label"), SOURCES.values(), ids=SOURCES.keys())
def test_sources_have_short_labels(
    values: dict[str, Any], label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of source has a short label."""
    monkeypatch.chdir(tmp_path)
    place = values["location"].replace("HERE", str(tmp_path))
    origin = source_model(**values | {"location": place})
    manifest = draft_of(write_package(tmp_path / "package", "made once")).model_copy(update={"source": origin})
    source = source_of_release(manifest)
    assert source.label == label
    assert source.revision == values.get("revision")


def test_companion_models_are_counted(tmp_path: Path) -> None:
    draft = draft_of(write_package(tmp_path / "package", "made once"))
    companion = ReleasedModel.model_construct(source=draft.source)
    origin = source_model(scheme="hf", location="org/x", revision=COMMIT)
    manifest = draft.model_copy(update={"source": origin, "beside": {"other": companion}})
    assert source_of_release(manifest).label == "hf:org/x@1a2b3c4 and 1 more"
