"""A model whose source an event of a registry set stays with it until its spec's own source changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import ModelSpec
from plansmith.errors import RepositoryError
from plansmith.fleet.build import spec_of
from plansmith.fleet.records import PlannedModel
from plansmith.records.release import Fingerprint, SourceOverride
from plansmith.steps.provenance.fingerprint import require_not_superseded, with_overridden_source

from ..support.fleet import Place

OWN, CHOSEN = "mlflow:models:/net@champion", "mlflow:models:/net/3"
BY = SourceOverride(replaces=OWN, at=7)
NOTED = Fingerprint(
    version=4,
    spec={"source": CHOSEN},
    source="",
    revision="3",
    data="",
    target="",
    tools={},
    destinations=(),
    source_override=BY,
)


def overridden(own: str, **noted: Any) -> tuple[str, SourceOverride | None]:
    spec = with_overridden_source(ModelSpec(source=own), NOTED.model_copy(update=noted))
    return spec.source, spec.source_override


def test_event_source_counts_while_same() -> None:
    """Source of an event counts as long as the spec names the same one."""
    assert overridden(OWN) == (CHOSEN, BY)
    assert overridden("mlflow:models:/net@challenger") == ("mlflow:models:/net@challenger", None)
    assert overridden(OWN, source_override=None) == (OWN, None)


def test_following_spec_names_source() -> None:
    """A spec that follows what the event told of says itself where that is."""
    assert overridden(OWN, source_override=BY.model_copy(update={"is_tracked": True})) == (OWN, None)


@pytest.mark.parametrize(("at", "is_superseded"), [(6, True), (7, False), (8, False)])
def test_earlier_event_not_published_later(at: float, is_superseded: bool) -> None:
    """A source that an earlier event set is not published after that of a later one."""
    spec = ModelSpec(source="mlflow:models:/net/2", source_override=SourceOverride(replaces=OWN, at=at))
    if not is_superseded:
        require_not_superseded(spec, NOTED)
        return
    with pytest.raises(RepositoryError, match=r"a later event set mlflow:models:/net/3, which is version 4"):
        require_not_superseded(spec, NOTED)


def test_unchosen_source_always_published() -> None:
    """A source that nobody chose is published, whatever was chosen before."""
    require_not_superseded(ModelSpec(source=OWN), NOTED)
    require_not_superseded(ModelSpec(source=CHOSEN, source_override=BY), NOTED.model_copy(update={"chosen": None}))
    require_not_superseded(ModelSpec(source=CHOSEN, source_override=BY), None)


@pytest.fixture
def triggered(place: Place) -> Path:
    """The spec of a model that was built from another graph than its own, as an event asked."""
    replacement = place.folder / "other.onnx"
    replacement.write_bytes(b"what the registry had")
    file = place.spec(source=f"onnx:{replacement}", source_override={"replaces": f"onnx:{place.graph}", "at": 7})
    place.publish(file)
    return place.spec()


def test_event_choice_is_not_stale(place: Place, triggered: Path) -> None:
    """A model is not stale for what an event chose."""
    (planned,) = place.plan(triggered)
    assert (planned.state, planned.source) == ("fresh", f"onnx:{place.folder / 'other.onnx'}")
    place.graph.write_bytes(b"the spec's own, which is not served")
    assert place.why() == ""


def test_stale_model_built_from_event(place: Place, triggered: Path) -> None:
    """What is stale for another reason is built from what the event chose."""
    (place.folder / "other.onnx").write_bytes(b"changed in its place")
    (planned,) = place.plan(triggered)
    assert planned.why == "the files of the model changed"
    assert built(planned) == ("one", planned.source, SourceOverride(replaces=f"onnx:{place.graph}", at=7))
    (forced,) = place.plan(triggered, force=True)
    assert built(forced) == built(planned)


@pytest.mark.usefixtures("triggered")
def test_edited_source_is_built(place: Place) -> None:
    """A spec whose own source was edited is built from it."""
    new = place.folder / "new.onnx"
    new.write_bytes(b"what somebody wants now")
    (planned,) = place.plan(place.spec(source=f"onnx:{new}"))
    assert (planned.state, planned.source) == ("stale", "")
    assert planned.why.startswith("spec: source 'onnx:")
    assert built(planned) == ("one", f"onnx:{new}", None)


def test_late_edit_counts(place: Place, triggered: Path) -> None:
    """An edit between plan and build counts."""
    (planned,) = place.plan(triggered, force=True)
    place.spec(source="hf:org/other")
    assert built(planned) == ("one", "hf:org/other", None)


def built(planned: PlannedModel) -> tuple[str, str, SourceOverride | None]:
    """The name and the source that a planned model is built by, and by what that was chosen."""
    spec, _ = spec_of(planned, {})
    return spec.name, spec.source, spec.source_override
