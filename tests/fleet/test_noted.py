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
from plansmith.records.release import Fingerprint
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
def product_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def copy(product_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which may be changed."""
    monkeypatch.setattr("plansmith.steps.runner.Worker", InlineWorker)
    shutil.copytree(product_folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    for note in (_note(tmp_path), tmp_path / STORE / "bases" / "product.json"):  # the store moved with it
        note.write_text(note.read_text().replace(str(product_folder), str(tmp_path)))
    return tmp_path


def _compile(folder: Path, listener: Listener | None = None, **values: Any) -> bool:
    """Whether a compile left the newest version as it was."""
    places = {"artifacts": str(folder / "artifacts"), "publish": [STORE]}
    spec = ModelSpec.model_validate(SPEC | places | values)
    with Compilation(spec, relative_to=folder, listener=listener) as compilation:
        return compilation.run()[0].unchanged


def _plan(folder: Path, **values: Any) -> PlannedModel:
    options = {name: values.pop(name) for name in ("resolve", "elsewhere", "force", "tell") if name in values}
    (planned,) = plan_fleet([folder / "product.yaml"], values, **options)
    return planned


def _note(folder: Path) -> Path:
    return folder / "artifacts" / "repository.plansmith" / "basis" / "product.json"


def test_compiled_model_is_fresh(product_folder: Path) -> None:
    """What was compiled is fresh and its note says what its manifest does."""
    planned = _plan(product_folder)
    assert (planned.state, planned.why, planned.version) == ("fresh", "nothing changed", 1)
    noted = Fingerprint.model_validate_json(_note(product_folder).read_text())
    assert (noted.version, noted.weights, noted.destinations) == (1, ("weights.bin",), (str(product_folder / STORE),))
    manifest = json.loads(
        (product_folder / "artifacts/repository.plansmith/releases/product/1/manifest.json").read_text()
    )
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
def test_source_files_are_checked(copy: Path, name: str, why: str) -> None:
    """Every file that a release was made from is looked at."""
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content + b"1")
    planned = _plan(copy)
    assert planned.state == "stale"
    assert planned.why.startswith(why)
    (copy / name).write_bytes(content)
    assert _plan(copy).state == "fresh"


def test_unchanged_compile_is_noted(copy: Path) -> None:
    """A compile that changes nothing is noted as well, and a dry one is not."""
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


def test_ineffective_change_asked_once(copy: Path) -> None:
    """A change that makes the same release again is asked for once."""
    fields = json.loads(_note(copy).read_text())
    _note(copy).write_text(json.dumps(fields | {"tools": fields["tools"] | {"onnx": "0.1"}}))
    assert [reason.cause for reason in _plan(copy).reasons] == ["tools"]
    assert _compile(copy)
    assert _plan(copy).state == "fresh"


def test_failed_destination_asked_again(copy: Path) -> None:
    """A place that could not be published to is asked for again and no other is."""
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


def test_unwritable_note_keeps_version(copy: Path) -> None:
    """A note that cannot be written is told and the version stands."""
    shutil.rmtree(_note(copy).parent)
    _note(copy).parent.write_text("a file where the folder should be")
    messages: list[str] = []

    class Hears(Listener):
        def notice(self, text: str) -> None:
            messages.append(text)

    assert _compile(copy, Hears())
    assert [text for text in messages if text.startswith("what version 1 was made from could not be noted: ")]
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
    return noted, fingerprint_of(spec, relative_to=folder, digester=Digester(folder / "memo"), previous=noted)


def test_folder_model_known_by_hash(folder: Path) -> None:
    """A model of a folder is known by what its first step hashes."""
    spec = ModelSpec(source="hf:bert", name="bert", check_served=False, artifacts=str(folder.parent / "artifacts"))
    noted, fingerprint = _fetched(folder.parent, spec)
    assert noted == fingerprint
    assert len(noted.source) == 64


def test_hub_model_known_by_commit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of the Hub is known by the commit that was fetched."""
    commit, place = "0123456789" * 4, tmp_path / "hub" / "models--org--bert"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "snapshots").mkdir()
    folder.rename(place / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = ModelSpec(source="hf:org/bert", name="bert", check_served=False, artifacts=str(tmp_path / "artifacts"))
    noted, fingerprint = _fetched(tmp_path, spec)
    assert noted == fingerprint
    assert (noted.revision, noted.hub_id, noted.source) == (commit, "org/bert", "")


def test_lost_store_version_is_asked(copy: Path) -> None:
    """A store that lost the version is asked where that is wanted."""
    noted = Fingerprint.model_validate_json(_note(copy).read_text())
    assert list(noted.stored) == [str(copy / STORE)]
    (copy / STORE / "models" / "product.json").unlink()
    assert _plan(copy).state == "fresh"
    assert _plan(copy, resolve=True).why == f"no longer in {copy / STORE}"
    assert _compile(copy)
    assert _plan(copy, resolve=True).state == "fresh"
    (copy / STORE / "models" / "product.json").write_text("{")
    messages: list[str] = []
    assert _plan(copy, resolve=True, tell=messages.append).state == "fresh"
    assert len(messages) == 1
    assert messages[0].startswith(f"{copy / STORE} was not asked what it has: models/product.json in ")


def test_other_machine_known_from_store(copy: Path) -> None:
    """What another machine built is known from the store and no repository is shared."""
    own: dict[str, Any] = {"artifacts": str(copy / "own"), "repository": str(copy / "own" / "repository")}
    (copy / "net.onnx").touch()
    assert _plan(copy, **own).why == "there is no version of it yet"
    assert _plan(copy, elsewhere=True, **own).state == "fresh"
    assert _plan(copy, elsewhere=True, precision="int8", **own).why.startswith("spec: precision fp32 -> int8")
    assert _plan(copy, elsewhere=True, force=True, **own).state == "stale"
    plan = _plan(copy, elsewhere=True, publish=[STORE, "other"], **own)
    assert plan.why == f"not yet in {copy / 'other'}"
    (copy / "labels.txt").write_text("1\n2\n3\n4\n5\n")
    assert not _compile(copy)
    assert _plan(copy, elsewhere=True, **own).state == "fresh", "the store tells of the newest"
    (copy / STORE / "bases" / "product.json").unlink()
    assert _plan(copy, elsewhere=True, **own).why == "there is no version of it yet"
