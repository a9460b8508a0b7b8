"""What a compile notes is what a plan finds: models are compiled for real, and nothing about them is stale."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError
from plansmith.fleet.plan import plan_fleet
from plansmith.fleet.records import PlannedModel
from plansmith.records.fingerprint import Fingerprint
from plansmith.steps.compilation import Compilation
from plansmith.steps.provenance import fingerprint
from plansmith.steps.provenance.fingerprint import completed, fingerprint_of
from plansmith.steps.runner import Listener
from plansmith.system.digest import Digester

from ..support.cli.in_process import InlineWorker
from ..support.made import fetched
from ..support.models.graphs import save_product

STORE = "store"
SPEC: dict[str, Any] = {
    "source": "onnx:net.onnx",
    "name": "product",
    "artifacts": "artifacts",
    "check_served": False,
    "shapes": {"x": "1x3x64:2x3x64:4x3x64"},
    "data": {"path": "samples.npz", "calibration": 4, "evaluation": 4},
    "triton": {"outputs": {"y": {"label_filename": "labels.txt"}}},
    "publish": [STORE],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which product.yaml was compiled once: weights beside the graph, data, labels and a store."""
    folder = tmp_path_factory.mktemp("noted")
    save_product(folder)
    np.savez(folder / "samples.npz", x=np.random.default_rng(0).normal(size=(12, 3, 64)).astype(np.float32))
    (folder / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    (folder / "product.yaml").write_text(yaml.safe_dump(SPEC))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plansmith.steps.runner.Worker", InlineWorker)
        assert not _compile(folder)
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which may be changed."""
    monkeypatch.setattr("plansmith.steps.runner.Worker", InlineWorker)
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    for note in (_note(tmp_path), tmp_path / STORE / "bases" / "product.json"):  # the store moved with it
        note.write_text(note.read_text().replace(str(made), str(tmp_path)))
    return tmp_path


def _compile(folder: Path, listener: Listener | None = None, **values: Any) -> bool:
    """Whether a compile left the newest version as it was."""
    places = {"artifacts": str(folder / "artifacts"), "publish": [STORE]}
    spec = ModelSpec.model_validate(SPEC | places | values)
    with Compilation(spec, relative_to=folder, listener=listener) as compilation:
        return compilation.run()[0].unchanged


def _plan(folder: Path, **given: Any) -> PlannedModel:
    options = {name: given.pop(name) for name in ("resolve", "elsewhere", "force", "tell") if name in given}
    (planned,) = plan_fleet([folder / "product.yaml"], given, **options)
    return planned


def _note(folder: Path) -> Path:
    return folder / "artifacts" / "repository.plansmith" / "basis" / "product.json"


def test_what_was_compiled_is_fresh_and_its_note_says_what_its_manifest_does(made: Path) -> None:
    planned = _plan(made)
    assert (planned.state, planned.why, planned.version) == ("fresh", "nothing changed", 1)
    noted = Fingerprint.model_validate_json(_note(made).read_text())
    assert (noted.version, noted.weights, noted.destinations) == (1, ("weights.bin",), (str(made / STORE),))
    manifest = json.loads((made / "artifacts/repository.plansmith/releases/product/1/manifest.json").read_text())
    assert (noted.source, noted.data) == (manifest["source"]["digest"], manifest["data"]["digest"])
    assert {"code of fetch", "code of sample", "code of publish", "numpy"} - noted.tools.keys() == {"code of publish"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("net.onnx", "the files of the model changed"),
        ("weights.bin", "the files of the model changed"),
        ("samples.npz", "the data changed"),
        ("labels.txt", "spec: triton.outputs.y.label_filename labels.txt "),
    ],
)
def test_every_file_that_it_was_made_from_is_looked_at(copy: Path, name: str, why: str) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content + b"1")
    planned = _plan(copy)
    assert planned.state == "stale"
    assert planned.why.startswith(why)
    (copy / name).write_bytes(content)
    assert _plan(copy).state == "fresh"


def test_a_compile_that_changes_nothing_notes_it_as_well_and_a_dry_one_does_not(copy: Path) -> None:
    before = json.loads(_note(copy).read_text())
    _note(copy).unlink()
    assert _plan(copy).why == "what version 1 was made from was not noted"
    spec = ModelSpec.model_validate(SPEC | {"artifacts": str(copy / "artifacts")})
    with Compilation(spec, relative_to=copy, dry=True) as dry:
        assert dry.plan()["publish"].startswith("nothing")
    assert not _note(copy).exists()
    assert _compile(copy)
    after = json.loads(_note(copy).read_text())
    assert after == before
    assert _plan(copy).state == "fresh"


def test_a_change_that_makes_the_same_release_again_is_asked_for_once(copy: Path) -> None:
    fields = json.loads(_note(copy).read_text())
    _note(copy).write_text(json.dumps(fields | {"tools": fields["tools"] | {"onnx": "0.1"}}))
    assert [reason.cause for reason in _plan(copy).reasons] == ["tools"]
    assert _compile(copy)
    assert _plan(copy).state == "fresh"


def test_a_place_that_could_not_be_published_to_is_asked_for_again_and_no_other_is(copy: Path) -> None:
    both: dict[str, Any] = {"publish": [STORE, "other"]}
    assert _plan(copy, **both).why == f"not yet in {copy / 'other'}"
    assert _compile(copy, **both)
    contents = copy / "other" / "objects"
    contents.rename(copy / "away")
    contents.write_text("no folder, so that nothing can be written below it")
    with pytest.raises(PlansmithError):
        _compile(copy, **both, force=True)
    planned = _plan(copy, **both)
    assert (planned.version, planned.why) == (2, f"not yet in {copy / 'other'}")
    contents.unlink()
    (copy / "away").rename(contents)
    assert _compile(copy, **both)
    assert _plan(copy, **both).state == "fresh"


def test_a_note_that_cannot_be_written_is_told_and_the_version_stands(copy: Path) -> None:
    shutil.rmtree(_note(copy).parent)
    _note(copy).parent.write_text("a file where the folder should be")
    said: list[str] = []

    class Hears(Listener):
        def notice(self, text: str) -> None:
            said.append(text)

    assert _compile(copy, Hears())
    assert [text for text in said if text.startswith("what version 1 was made from could not be noted: ")]
    assert _plan(copy).state == "stale"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as transformers saves it, as far as its first step looks."""
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "entry.json").write_text("{}")
    return folder


def _fetched(folder: Path, spec: ModelSpec) -> tuple[Fingerprint, Fingerprint]:
    """The basis that a compile notes after its first step, and the one that is found without any."""
    with Compilation(spec, relative_to=folder) as compilation:
        surroundings = fingerprint.build_inputs(
            spec, compilation.context.model.reference, relative_to=folder, digester=Digester(folder / "memo")
        )
        noted = completed(surroundings, spec, fetched(compilation.context.model), {})
    return noted, fingerprint_of(spec, relative_to=folder, digester=Digester(folder / "memo"), known=noted)


def test_a_model_of_a_folder_is_known_by_what_its_first_step_hashes(folder: Path) -> None:
    spec = ModelSpec(source="hf:bert", name="bert", check_served=False, artifacts=str(folder.parent / "artifacts"))
    noted, found = _fetched(folder.parent, spec)
    assert noted == found
    assert len(noted.source) == 64


def test_a_model_of_the_hub_is_known_by_the_commit_that_was_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, place = "0123456789" * 4, tmp_path / "hub" / "models--org--bert"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "snapshots").mkdir()
    folder.rename(place / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = ModelSpec(source="hf:org/bert", name="bert", check_served=False, artifacts=str(tmp_path / "artifacts"))
    noted, found = _fetched(tmp_path, spec)
    assert noted == found
    assert (noted.revision, noted.hub_id, noted.source) == (commit, "org/bert", "")


def test_a_store_that_lost_the_version_is_asked_where_that_is_wanted(copy: Path) -> None:
    noted = Fingerprint.model_validate_json(_note(copy).read_text())
    assert list(noted.stored) == [str(copy / STORE)]
    (copy / STORE / "models" / "product.json").unlink()
    assert _plan(copy).state == "fresh"
    assert _plan(copy, resolve=True).why == f"no longer in {copy / STORE}"
    assert _compile(copy)
    assert _plan(copy, resolve=True).state == "fresh"
    (copy / STORE / "models" / "product.json").write_text("{")
    said: list[str] = []
    assert _plan(copy, resolve=True, tell=said.append).state == "fresh"
    assert len(said) == 1
    assert said[0].startswith(f"{copy / STORE} was not asked what it has: models/product.json in ")


def test_what_another_machine_built_is_known_from_the_store_and_no_repository_is_shared(copy: Path) -> None:
    own: dict[str, Any] = {"artifacts": str(copy / "own"), "repository": str(copy / "own" / "repository")}
    (copy / "net.onnx").touch()
    assert _plan(copy, **own).why == "there is no version of it yet"
    assert _plan(copy, elsewhere=True, **own).state == "fresh"
    assert _plan(copy, elsewhere=True, precision="int8", **own).why.startswith("spec: precision fp32 -> int8")
    assert _plan(copy, elsewhere=True, force=True, **own).state == "stale"
    other = _plan(copy, elsewhere=True, publish=[STORE, "other"], **own)
    assert other.why == f"not yet in {copy / 'other'}"
    (copy / "labels.txt").write_text("1\n2\n3\n4\n5\n")
    assert not _compile(copy)
    assert _plan(copy, elsewhere=True, **own).state == "fresh", "the store tells of the newest"
    (copy / STORE / "bases" / "product.json").unlink()
    assert _plan(copy, elsewhere=True, **own).why == "there is no version of it yet"
