"""Why a release of several models is built again: what changed of each, and nothing twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import ModelSpec, make_spec
from plansmith.errors import SourceError
from plansmith.fleet.rebuild_reasons import differences
from plansmith.records.fingerprint import Fingerprint
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


def both(topics: Fingerprint, **fields: Any) -> Fingerprint:
    return basis(beside={"topics": topics}, **fields)


def why(then: Fingerprint, now: Fingerprint) -> list[tuple[str, str]]:
    return [(reason.cause, reason.words) for reason in differences(then, now)]


def test_nothing_changed_of_either() -> None:
    assert why(both(basis()), both(basis())) == []


def test_what_changed_of_a_model_beside_is_told_with_its_name() -> None:
    then = both(basis())
    assert why(then, both(basis(source="b"))) == [("source", "topics: the files of the model changed")]
    assert why(then, both(basis(data="e"))) == [("data", "topics: the data changed")]
    assert why(then, both(basis(revision="0123456789ab", hub_id="org/topics"))) == [
        ("source", "topics: org/topics is now at 0123456")
    ]
    assert why(then, both(basis(source="b"), source="b")) == [
        ("source", "the files of the model changed"),
        ("source", "topics: the files of the model changed"),
    ]


def test_a_tool_that_both_models_are_made_with_is_told_once() -> None:
    new = {"torch": "2.10.0"}
    then = both(basis())
    assert why(then, both(basis(tools=new), tools=new)) == [("tools", "torch 2.9.1 -> 2.10.0")]
    assert why(then, both(basis(tools=new))) == [("tools", "topics: torch 2.9.1 -> 2.10.0")]


def test_the_spec_the_target_and_the_destinations_are_told_of_the_release_as_a_whole() -> None:
    changed = {"spec": {"precision": "fp16"}, "target": "u", "destinations": ("store",)}
    assert why(both(basis()), both(basis(**changed))) == []
    assert [cause for cause, _ in why(both(basis()), both(basis(**changed), **changed))] == [
        *("spec", "target", "destination")
    ]


def test_a_model_that_is_new_beside_the_other_or_gone_is_a_matter_of_the_spec() -> None:
    assert why(basis(), both(basis())) == why(both(basis()), basis()) == []


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


def found(folder: Path, known: Fingerprint | None = None) -> Fingerprint:
    """What a compile would be made from now."""
    return fingerprint_of(spec_of(folder), relative_to=folder, digester=Digester(folder / "memo"), known=known)


def test_what_a_compile_notes_of_both_models_is_what_a_plan_finds(folder: Path) -> None:
    spec = spec_of(folder)
    with Compilation(spec, relative_to=folder) as compilation:
        surroundings = fingerprint.build_inputs(
            spec, compilation.context.model.reference, relative_to=folder, digester=Digester(folder / "memo")
        )
        beside = {name: fetched(model) for name, model in compilation.context.beside.items()}
        noted = completed(surroundings, spec, fetched(compilation.context.model), beside)
    assert list(noted.beside) == ["topics"]
    assert len(noted.beside["topics"].source) == len(noted.source)
    assert noted == found(folder, noted)
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
def test_every_file_of_both_models_and_the_script_is_looked_at(file: str, words: str, folder: Path) -> None:
    noted = found(folder)
    with (folder / file).open("a") as changed:
        changed.write("\n")
    ((_, told),) = why(noted, found(folder, noted))
    assert told.startswith(words)


def test_a_model_beside_that_is_gone_cannot_be_planned(folder: Path) -> None:
    shutil.rmtree(folder / "topics")
    with pytest.raises(SourceError, match="topics"):
        found(folder)
