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
def test_a_mistake_is_found_and_no_other(
    rule: str, script: Changes, first: Changes, second: Changes, written: Written
) -> None:
    put(written, script, first, second)
    found = findings(written.root)
    assert {one.rule for one in found} == {f"script.{rule}"}
    assert {one.model for one in found} == {"top"}


PROGRAMS = {
    "none": (None, "there is no script.py"),
    "one that cannot be parsed": ("def answer(:", "it cannot be parsed"),
    "one without the function": ("def reply(inputs, models): ...", "there is no function answer"),
    "one argument": ("def answer(inputs): ...", "cannot be called with two arguments"),
    "async": ("async def answer(inputs, models): ...", "cannot be called with two arguments"),
}


@pytest.mark.parametrize(("program", "words"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_that_cannot_be_asked_is_found(program: str | None, words: str, written: Written) -> None:
    put(written, program=program)
    (found,) = findings(written.root)
    assert found.rule in {"script.program", "python.unsure-syntax"}
    assert found.place == "top/1/script.py"
    assert words in found.message


@pytest.mark.parametrize("settings", ["no JSON", "{}", '{"chains": {"main": {"steps": 1, "outputs": []}}}', "[]"])
def test_settings_that_tell_no_chains_are_found(settings: str, written: Written) -> None:
    put(written, settings=settings)
    assert broken(written.root) == {"script.settings"}


@pytest.mark.parametrize("program", [PROGRAM, "from route import answer", "answer = lambda inputs, models: {}"])
def test_a_script_that_can_be_asked_is_passed(program: str, written: Written) -> None:
    optional = 'input { name: "mask" optional: true data_type: TYPE_INT64 dims: [ -1 ] } output {'
    put(written, second={"output {": optional}, program=program)
    assert broken(written.root) == set()


def test_a_program_of_somebody_elses_is_held_against_its_parameter_alone(written: Written) -> None:
    written.add("top", SCRIPT, {"1/model.py": MODEL})
    assert [one.message for one in findings(written.root)] == [
        "the repository has no model first",
        "the repository has no model second",
    ]


def test_a_server_that_loads_the_script_alone_is_told_of_its_models(written: Written) -> None:
    put(written)
    alone = ("--model-control-mode=explicit", "--load-model=top")
    found = findings(written.root, arguments=alone)
    assert [(one.rule, one.line) for one in found] == [("script.loaded", 4)] * 2
    assert found[0].remedy == "start the server with --load-model=first too"
    assert broken(written.root, arguments=(*alone, "--load-model=first", "--load-model=second")) == set()
    assert broken(written.root, arguments=("--model-control-mode=explicit",)) == set()


def test_sagemaker_is_told_to_load_the_models_of_a_script(written: Written) -> None:
    put(written)
    (found,) = [one for one in findings(written.root, sagemaker=True) if one.rule.startswith("script.")]
    assert (found.rule, found.severity) == ("script.sagemaker", "warning")
    assert "SAGEMAKER_TRITON_ADDITIONAL_ARGS='--load-model=first --load-model=second'" in found.remedy
    told = ("--load-model=first", "--load-model=second")
    assert "script.sagemaker" not in broken(written.root, sagemaker=True, arguments=told)


def test_what_is_published_of_a_script_is_sound_in_the_release_and_in_the_repository(tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "repository")
    published = publish_scripted(repository, tmp_path)
    assert [one for one in check_repository(repository.root) if one.severity != "note"] == []
    manifest = repository.manifest(published.name, published.version)
    folder = repository.release(published.name, published.version)
    target = repository.load_target()
    assert [one for one in check_package(manifest.package, folder, target=target) if one.severity != "note"] == []
    draft = write_scripted(tmp_path / "lost", 2)
    without = draft.package.model_copy(update={"members": draft.package.members[1:]})
    found = check_package(without, tmp_path / "lost", target=target)
    assert {one.rule for one in found if one.severity == "error"} == {"script.member"}
