"""Why a release of several models is built again: what changed of each, and nothing twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import ModelSpec, make_spec
from plansmith.errors import SourceError
from plansmith.fleet.plan import differences
from plansmith.records.release import Fingerprint
from plansmith.steps.compilation import Compilation
from plansmith.steps.provenance import fingerprint
from plansmith.steps.provenance.fingerprint import completed, fingerprint_of
from plansmith.system.digest import Digester

from ..support.cli.command import BERT
from ..support.made import fetched

NAMES = ("mood", "topics")


def basis(**fields: Any) -> Fingerprint:
    """What a model was made from."""
    usual: dict[str, Any] = {"version": 1, "spec": {}, "source": "a", "revision": "", "data": "d", "target": "t"}
    return Fingerprint(**usual | {"tools": {"torch": "2.9.1"}, "destinations": ()} | fields)


def joint_basis(topics: Fingerprint, **fields: Any) -> Fingerprint:
    return basis(beside={"topics": topics}, **fields)


def why(then: Fingerprint, now: Fingerprint) -> list[tuple[str, str]]:
    return [(reason.cause, reason.words) for reason in differences(then, now)]


def test_nothing_changed_of_either() -> None:
    assert why(joint_basis(basis()), joint_basis(basis())) == []


def test_change_beside_told_with_name() -> None:
    """What changed of a model beside is told with its name."""
    then = joint_basis(basis())
    assert why(then, joint_basis(basis(source="b"))) == [("source", "topics: the files of the model changed")]
    assert why(then, joint_basis(basis(data="e"))) == [("data", "topics: the data changed")]
    assert why(then, joint_basis(basis(revision="0123456789ab", hub_id="org/topics"))) == [
        ("source", "topics: org/topics is now at 0123456")
    ]
    assert why(then, joint_basis(basis(source="b"), source="b")) == [
        ("source", "the files of the model changed"),
        ("source", "topics: the files of the model changed"),
    ]


def test_shared_tool_told_once() -> None:
    """A tool that both models are made with is told once."""
    new = {"torch": "2.10.0"}
    then = joint_basis(basis())
    assert why(then, joint_basis(basis(tools=new), tools=new)) == [("tools", "torch 2.9.1 -> 2.10.0")]
    assert why(then, joint_basis(basis(tools=new))) == [("tools", "topics: torch 2.9.1 -> 2.10.0")]


def test_common_settings_told_of_release() -> None:
    """The spec the target and the destinations are told of the release as a whole."""
    changed = {"spec": {"precision": "fp16"}, "target": "u", "destinations": ("store",)}
    assert why(joint_basis(basis()), joint_basis(basis(**changed))) == []
    assert [cause for cause, _ in why(joint_basis(basis()), joint_basis(basis(**changed), **changed))] == [
        *("spec", "target", "destination")
    ]


def test_added_or_gone_model_blames_spec() -> None:
    """A model that is new beside the other, or gone, is a matter of the spec."""
    assert why(basis(), joint_basis(basis())) == why(joint_basis(basis()), basis()) == []


@pytest.fixture
def folder(tmp_path: Path, minilm_folder: Path) -> Path:
    """Two models as transformers saves them, as far as their first step looks, and a script."""
    import json

    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(BERT))
        (tmp_path / name / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(minilm_folder / file, tmp_path / name / file)
    (tmp_path / "route.py").write_text("def answer(inputs, models): ...\n")
    return tmp_path


def spec_of(folder: Path) -> ModelSpec:
    around = {"script": "route.py", "models": {"topics": {"source": "hf:./topics"}}}
    usual = {"source": "hf:./mood", "name": "reader", "check_served": False, "artifacts": str(folder / "artifacts")}
    return make_spec(usual | {"pipeline": around})


def current_fingerprint(folder: Path, previous: Fingerprint | None = None) -> Fingerprint:
    """What a compile would be made from now."""
    return fingerprint_of(spec_of(folder), relative_to=folder, digester=Digester(folder / "memo"), previous=previous)


def test_compile_notes_match_plan(folder: Path) -> None:
    """What a compile notes of both models is what a plan finds."""
    spec = spec_of(folder)
    with Compilation(spec, relative_to=folder) as compilation:
        surroundings = fingerprint.build_inputs(
            spec, compilation.context.model.reference, relative_to=folder, digester=Digester(folder / "memo")
        )
        beside = {name: fetched(model) for name, model in compilation.context.companions.items()}
        noted = completed(surroundings, spec, fetched(compilation.context.model), beside)
    assert list(noted.beside) == ["topics"]
    assert len(noted.beside["topics"].source) == len(noted.source)
    assert noted == current_fingerprint(folder, noted)
    assert Fingerprint.model_validate_json(noted.model_dump_json()) == noted


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("mood/config.json", "the files of the model changed"),
        ("topics/config.json", "topics: the files of the model changed"),
        ("topics/tokenizer.json", "topics: the files of the model changed"),
        ("route.py", "spec: pipeline.script route.py "),
    ],
)
def test_files_of_both_models_checked(file: str, words: str, folder: Path) -> None:
    """Every file of both models and the script is looked at."""
    noted = current_fingerprint(folder)
    with (folder / file).open("a") as changed:
        changed.write("\n")
    ((_, explanation),) = why(noted, current_fingerprint(folder, noted))
    assert explanation.startswith(words)


def test_missing_model_beside_cannot_be_planned(folder: Path) -> None:
    """A model beside another that is gone cannot be planned."""
    shutil.rmtree(folder / "topics")
    with pytest.raises(SourceError, match="topics"):
        current_fingerprint(folder)
