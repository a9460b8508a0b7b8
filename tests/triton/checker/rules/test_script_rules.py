"""Scripts whose models are not there, not loaded or of other tensors are found, and those that can be asked are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plansmith.triton.checker.checker import check_package, check_repository
from plansmith.triton.repository.repository import ModelRepository

from ....support.checker.backend_rules import broken, findings
from ....support.triton.scripted import publish_scripted, write_scripted
from .test_ensemble_rules import FIRST, MODEL, SECOND, changed

if TYPE_CHECKING:
    from ....support.checker.written import Written

SCRIPT = """backend: "python" max_batch_size: 8
input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] }
parameters { key: "plansmith.members" value { string_value: "first, second" } }
"""
PROGRAM = "def answer(inputs, models):\n    return models['main'](text=inputs['text'])\n"
SETTINGS: dict[str, Any] = {
    "chains": {
        "main": {
            "steps": [
                {"model": "first", "inputs": {"TEXT": "text"}, "outputs": {"IDS": "ids"}},
                {"model": "second", "inputs": {"ids": "ids"}, "outputs": {"scores": "scores"}},
            ],
            "outputs": ["scores"],
        }
    },
    "outputs": [{"name": "scores", "dtype": "float32", "dims": ["batch", 2]}],
}


def put(
    written: Written,
    script: dict[str, str] | None = None,
    first: dict[str, str] | None = None,
    second: dict[str, str] | None = None,
    *,
    settings: str | None = None,
    program: str | None = PROGRAM,
) -> None:
    """A script and two models, with changes to the three configurations."""
    written.add("first", changed(FIRST, first or {}), {"1/model.py": MODEL})
    written.add("second", changed(SECOND, second or {}), {"1/model.py": MODEL})
    files = {"1/model.py": MODEL, "1/settings.json": settings or json.dumps(SETTINGS)}
    if program is not None:
        files["1/script.py"] = program
    written.add("top", changed(SCRIPT, script or {}), files)


Changes = dict[str, str]
MISTAKES: dict[str, tuple[str, Changes, Changes, Changes]] = {
    "a model that is not there": ("member", {"first, second": "first,second,third"}, {}, {}),
    "a model that is not named": ("parameter", {"first, second": "first"}, {}, {}),
    "a model without the input": ("mapping", {}, {'"TEXT"': '"TXT"'}, {}),
    "a model without the output": ("mapping", {}, {}, {'"scores"': '"logits"'}),
    "an input that is not given": (
        "mapping",
        {},
        {},
        {"output {": 'input { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] } output {'},
    ),
    "a decoupled model": ("decoupled", {}, {}, {"output {": "model_transaction_policy { decoupled: true } output {"}),
    "a larger batch than a model's": ("batch-size", {}, {"size: 8": "size: 4"}, {}),
}


@pytest.mark.parametrize(("rule", "script", "first", "second"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_found_alone(rule: str, script: Changes, first: Changes, second: Changes, written: Written) -> None:
    """A mistake is found, and no other."""
    put(written, script, first, second)
    results = findings(written.root)
    assert {finding.rule for finding in results} == {f"script.{rule}"}
    assert {finding.model for finding in results} == {"top"}


PROGRAMS = {
    "none": (None, "there is no script.py"),
    "one that cannot be parsed": ("def answer(:", "it cannot be parsed"),
    "one without the function": ("def reply(inputs, models): ...", "there is no function answer"),
    "one argument": ("def answer(inputs): ...", "cannot be called with two arguments"),
    "async": ("async def answer(inputs, models): ...", "cannot be called with two arguments"),
}


@pytest.mark.parametrize(("program", "words"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_unaskable_program_found(program: str | None, words: str, written: Written) -> None:
    """A program that cannot be asked is found."""
    put(written, program=program)
    (finding,) = findings(written.root)
    assert finding.rule in {"script.program", "python.unsure-syntax"}
    assert finding.place == "top/1/script.py"
    assert words in finding.message


@pytest.mark.parametrize("settings", ["no JSON", "{}", '{"chains": {"main": {"steps": 1, "outputs": []}}}', "[]"])
def test_chainless_settings_found(settings: str, written: Written) -> None:
    """Settings that tell no chains are found."""
    put(written, settings=settings)
    assert broken(written.root) == {"script.settings"}


@pytest.mark.parametrize("program", [PROGRAM, "from route import answer", "answer = lambda inputs, models: {}"])
def test_askable_script_passes(program: str, written: Written) -> None:
    """A script that can be asked is passed."""
    optional = 'input { name: "mask" optional: true data_type: TYPE_INT64 dims: [ -1 ] } output {'
    put(written, second={"output {": optional}, program=program)
    assert broken(written.root) == set()


def test_foreign_program_held_against_parameter(written: Written) -> None:
    """A program of somebody else's is held against its parameter alone."""
    written.add("top", SCRIPT, {"1/model.py": MODEL})
    assert [finding.message for finding in findings(written.root)] == [
        "the repository has no model first",
        "the repository has no model second",
    ]


def test_lone_script_server_told_models(written: Written) -> None:
    """A server that loads the script alone is told of its models."""
    put(written)
    alone = ("--model-control-mode=explicit", "--load-model=top")
    results = findings(written.root, arguments=alone)
    assert [(finding.rule, finding.line) for finding in results] == [("script.loaded", 4)] * 2
    assert results[0].remedy == "start the server with --load-model=first too"
    assert broken(written.root, arguments=(*alone, "--load-model=first", "--load-model=second")) == set()
    assert broken(written.root, arguments=("--model-control-mode=explicit",)) == set()


def test_sagemaker_told_script_models(written: Written) -> None:
    """SageMaker is told to load the models of a script."""
    put(written)
    (finding,) = [item for item in findings(written.root, sagemaker=True) if item.rule.startswith("script.")]
    assert (finding.rule, finding.severity) == ("script.sagemaker", "warning")
    assert "SAGEMAKER_TRITON_ADDITIONAL_ARGS='--load-model=first --load-model=second'" in finding.remedy
    options = ("--load-model=first", "--load-model=second")
    assert "script.sagemaker" not in broken(written.root, sagemaker=True, arguments=options)


def test_published_script_is_sound(tmp_path: Path) -> None:
    """What is published of a script is sound in the release and in the repository."""
    repository = ModelRepository(tmp_path / "repository")
    published = publish_scripted(repository, tmp_path)
    assert [finding for finding in check_repository(repository.root) if finding.severity != "note"] == []
    manifest = repository.manifest(published.name, published.version)
    folder = repository.release(published.name, published.version)
    target = repository.load_target()
    assert [
        finding for finding in check_package(manifest.package, folder, target=target) if finding.severity != "note"
    ] == []
    draft = write_scripted(tmp_path / "lost", 2)
    without = draft.package.model_copy(update={"members": draft.package.members[1:]})
    results = check_package(without, tmp_path / "lost", target=target)
    assert {finding.rule for finding in results if finding.severity == "error"} == {"script.member"}
