"""Spec files: one model or several, defaults, every problem at once, and no environment variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli.compile.compile import compile_command
from plansmith.cli.compile.specs import values_of_options
from plansmith.config.data import DataSpec
from plansmith.config.loader import SpecFile, read_specs
from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import ModelSpec, make_spec
from plansmith.config.triton.batching import DynamicBatching
from plansmith.config.triton.instances import InstanceGroup
from plansmith.config.yaml_source import option_for
from plansmith.errors import UsageError
from plansmith.records.destination import Destination
from plansmith.records.model import InputRange, SourceModel
from plansmith.records.validation import ToleranceChange
from plansmith.steps.provenance.reproduction import reproduction

from ..support.spec_examples import ACCEPTED, REFUSED, TWO, RefusedSpec

_MOST_LINES = 14


def _read(folder: Path, text: str, *picked: str, **overrides: Any) -> SpecFile:
    (folder / "bert").mkdir(exist_ok=True)
    path = folder / "model.yaml"
    path.write_text(text)
    return read_specs(path, overrides, picked)


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_spec_is_refused_with_all_its_problems_and_their_lines(spec: RefusedSpec, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        _read(tmp_path, spec.text)
    said = str(refusal.value).replace(f"{tmp_path}/", "")
    assert not [words for words in spec.says if words not in said], said
    assert refusal.value.remedy
    assert len(said.splitlines()) <= _MOST_LINES


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_right_spec_is_taken(text: str, tmp_path: Path) -> None:
    found = _read(tmp_path, text)
    assert found.several == ("models:" in text or "target: [" in text)
    assert all(model.name for model in found.models)


def _laughs(levels: int) -> str:
    """YAML that is short as text and of ten to the power of the levels items when its aliases are followed."""
    lists = [f"[{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]" for n in range(levels)]
    return "triton:\n" + "".join(f"  k{n}: &a{n} {items}\n" for n, items in enumerate(lists))


ENDLESS = {
    "lists": f"source: {'[' * 2000}{']' * 2000}\n",
    "more lists than a stack holds": f"source: {'[' * 100_000}\n",
    "a value inside of itself": "source: &a {b: *a}\n",
    "two of them that are merged": "defaults:\n  tolerances: &a {x: *a}\nmodels:\n  - tolerances: &b {x: *b}\n",
    "aliases of aliases": _laughs(12),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_has_no_end_is_refused_on_one_screen(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        _read(tmp_path, text)
    assert len(str(refusal.value)) < 4000


def test_a_model_starts_from_the_defaults_and_its_own_values_win(tmp_path: Path) -> None:
    loose, strict = ToleranceChange(max_relative=1, quantile_relative=1, min_cosine=0), [0.5, 0.25, 0.75, None]
    text = """
defaults:
  random_weights: true
  repository: r
  shapes: {a: 1x1, b: 2x2}
  tolerances: {x: {max_relative: 1, quantile_relative: 1, min_cosine: 0}, y: {max_relative: 0.5, min_cosine: 0.75}}
  triton: {instance_group: [{count: 3}], dynamic_batching: {max_queue_delay_microseconds: 7}}
models:
  - source: timm:plain
  - source: timm:own
    random_weights: false
    repository: ../other
    shapes: {b: 4x4, c: 5x5}
    tolerances: {y: {quantile_relative: 0.25}}
    triton: {instance_group: [{count: 1}]}
"""
    plain, own = (m.spec for m in _read(tmp_path, text).models)
    assert (plain.random_weights, own.random_weights) == (True, False)
    assert (plain.repository, own.repository) == (str(tmp_path / "r"), str(tmp_path / "../other"))
    assert {name: str(found) for name, found in own.shapes.items()} == {
        name: f"{size}x{size}:{size}x{size}:{size}x{size}" for name, size in (("a", 1), ("b", 4), ("c", 5))
    }
    assert set(plain.shapes) == {"a", "b"}
    assert own.tolerances["x"] == loose
    assert list(own.tolerances["y"].model_dump().values()) == strict
    for found, count in ((own.triton, 1), (plain.triton, 3)):
        assert found.dynamic_batching == DynamicBatching(max_queue_delay_microseconds=7)
        assert found.instance_group == (InstanceGroup(count=count),)


def test_paths_of_data_and_of_an_interpreter_stay_as_written_for_the_steps_that_know_the_folder(tmp_path: Path) -> None:
    text = "source: hf:bert\ndata: {path: ../a.csv}\nlowering: {autocast: venv/bin/python}\n"
    for written in (text, "defaults:\n  " + text.replace("\n", "\n  ") + "\nmodels: [{}]\n"):
        spec = _read(tmp_path, written).models[0].spec
        assert spec.data is not None
        assert spec.data.path == "../a.csv"
        assert spec.lowering.autocast == "venv/bin/python"


def test_destinations_stay_as_written_and_those_of_several_targets_are_apart(tmp_path: Path) -> None:
    text = "source: hf:bert\npublish: [../store, {to: s3://models/prod/, aliases: [champion]}]\n"
    (spec,) = (model.spec for model in _read(tmp_path, text).models)
    assert [(one.to, one.aliases) for one in spec.publish] == [
        ("../store", ("current",)),
        ("s3://models/prod/", ("champion",)),
    ]
    several = _read(tmp_path, f"{text}target: [triton-26.03, triton-26.08-cpu]\n").models
    assert [[one.to for one in model.spec.publish] for model in several] == [
        [f"../store/{target}", f"s3://models/prod/{target}"] for target in ("triton-26.03", "triton-26.08-cpu")
    ]


def test_destinations_of_a_model_replace_those_of_the_defaults(tmp_path: Path) -> None:
    text = "defaults: {publish: [a, b]}\nmodels: [source: hf:bert, {source: hf:bert, name: b, publish: c}]\n"
    ours, theirs = (model.spec for model in _read(tmp_path, text).models)
    assert [one.to for one in ours.publish] == ["a", "b"]
    assert [one.to for one in theirs.publish] == ["c"]
    typed = read_specs(tmp_path / "model.yaml", {"publish": ["/elsewhere"]}).models
    assert [[one.to for one in model.spec.publish] for model in typed] == [["/elsewhere"]] * 2


_DATA = """
defaults:
  data: {path: a.csv, evaluation: 500, columns: {text: body}}
models:
  - {source: timm:one, data: {metric: none, columns: {label: stars}}}
  - {source: timm:two, data: {dataset: org/set, split: test}}
"""


def test_data_are_merged_and_another_place_replaces_the_first(tmp_path: Path) -> None:
    one, two = (m.spec.data for m in _read(tmp_path, _DATA).models)
    assert one == DataSpec(path="a.csv", evaluation=500, metric="none", columns={"text": "body", "label": "stars"})
    assert two == DataSpec(dataset="org/set", split="test", evaluation=500, columns={"text": "body"})


def test_data_of_the_command_line_leave_columns_counts_and_measure_to_the_spec(tmp_path: Path) -> None:
    one, two = (m.spec.data for m in _read(tmp_path, _DATA, data={"path": "/typed.csv"}).models)
    assert one is not None
    assert (one.path, one.evaluation, one.metric) == ("/typed.csv", 500, "none")
    assert two == DataSpec(path="/typed.csv", evaluation=500, columns={"text": "body"})
    wrong = "source: hf:bert\ndata: {dataset: org/set, metric: f1}\n"
    with pytest.raises(UsageError, match=r"model\.yaml:2: 'data\.metric'"):
        _read(tmp_path, wrong, data={"path": "/typed.csv"})
    with pytest.raises(UsageError, match=r"command line: 'data\.path': must be text"):
        _read(tmp_path, wrong.replace(", metric: f1", ""), data={"path": 5})
    typed = _read(tmp_path, wrong.replace(", metric: f1", ""), data={"path": "/typed.csv"}).models[0].spec.data
    assert typed == DataSpec(path="/typed.csv")


def test_the_command_line_wins_over_models_and_defaults(tmp_path: Path) -> None:
    text = "defaults: {target: a}\n" + TWO.replace("name: two", "name: two\n    target: b")
    assert [model.spec.target for model in _read(tmp_path, text).models] == ["a", "b"]
    assert [model.spec.target for model in _read(tmp_path, text, target="c").models] == ["c", "c"]
    assert [model.name for model in _read(tmp_path, text, "two", name="typed").models] == ["typed"]
    for wrong in ("source: hf:bert\nengine: trt\n", f"defaults: {{engine: trt}}\n{TWO}"):
        assert _read(tmp_path, wrong, engine="onnxruntime").models[0].spec.engine == "onnxruntime"
    with pytest.raises(UsageError, match=r"^1 problem.*\n  command line: 'target': must be text"):
        _read(tmp_path, text, target=5)


def test_models_are_picked_by_the_name_they_have_or_their_source_gives(tmp_path: Path) -> None:
    text = f"{TWO}  - source: hf:bert\n  - source: hf:../not/there\n  - {{source: hf:bert, repository: elsewhere}}\n"
    assert [model.name for model in _read(tmp_path, text).models] == ["one", "two", "bert", "there", "bert"]
    assert [model.name for model in _read(tmp_path, text, "there", "one").models] == ["one", "there"]
    assert [model.spec.repository for model in _read(tmp_path, text, "bert").models] == [
        "",
        str(tmp_path / "elsewhere"),
    ]
    with pytest.raises(UsageError) as refusal:
        _read(tmp_path, TWO, "one", "three")
    assert "has no model 'three'" in refusal.value.message
    assert refusal.value.remedy == "its models are one, two"


def test_a_name_or_repository_on_the_command_line_does_not_make_one_model_of_several(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--name names one model, and 2 are to be compiled"):
        _read(tmp_path, TWO, name="x")
    text = "models:\n  - {source: hf:bert, repository: a}\n  - {source: hf:bert, repository: b}\n"
    with pytest.raises(UsageError, match=r"model\.yaml:3: the model in line 2 is called 'bert' too") as refusal:
        _read(tmp_path, text, repository="c")
    assert "leave the repository to the spec" in refusal.value.remedy


def test_what_to_type_instead_of_a_variable_is_an_option_that_there_is() -> None:
    options = {option for parameter in compile_command.params for option in parameter.opts}
    for key in set(ModelSpec.model_fields) - {"source"}:
        typed = option_for((key,), "$X").partition(" ")[0]
        assert typed in options or (not typed and f"--{key.replace('_', '-')}" not in options), key


def _places(found: SpecFile, folder: Path) -> list[tuple[str, str, str]]:
    """Name, target and repository of every model."""
    return [(m.name, m.spec.target, m.spec.repository.replace(f"{folder}/", "")) for m in found.models]


def test_several_targets_make_a_model_for_each_in_a_repository_of_its_own(tmp_path: Path) -> None:
    found = _read(tmp_path, "source: hf:bert\ntarget: [triton-26.03, sub/ours.yaml]\n")
    assert found.several
    assert _places(found, tmp_path) == [
        ("bert", "triton-26.03", "artifacts/repository/triton-26.03"),
        ("bert", f"{tmp_path}/sub/ours.yaml", "artifacts/repository/ours"),
    ]
    assert [model.label for model in found.models] == ["bert for triton-26.03", "bert for ours"]
    same = {model.spec.model_copy(update={"target": "", "repository": ""}).model_dump_json() for model in found.models}
    assert len(same) == 1
    named = _read(tmp_path, "source: hf:bert\ntarget: [a]\nrepository: r\nartifacts: x\n")
    assert _places(named, tmp_path) == [("bert", "a", "r/a")]


def test_one_target_that_is_no_list_is_as_ever(tmp_path: Path) -> None:
    found = _read(tmp_path, "source: hf:bert\ntarget: triton-26.03\n")
    assert not found.several
    assert _places(found, tmp_path) == [("bert", "triton-26.03", "")]
    assert found.models[0].label == "bert"


def test_a_list_of_targets_is_replaced_and_not_merged_and_makes_one_of_a_models_own_target(tmp_path: Path) -> None:
    text = (
        "defaults: {target: [a, b]}\n"
        + TWO.replace("name: two", "name: two\n    target: c")
        + ("  - {source: hf:bert, name: three, target: [c], artifacts: x}\n")
    )
    assert _places(_read(tmp_path, text), tmp_path) == [
        ("one", "a", "artifacts/repository/a"),
        ("one", "b", "artifacts/repository/b"),
        ("two", "c", "artifacts/repository/c"),
        ("three", "c", "x/repository/c"),
    ]
    assert [m.spec.target for m in _read(tmp_path, text, "one").models] == ["a", "b"]


def test_targets_of_the_command_line_win_and_stay_where_the_list_has_them(tmp_path: Path) -> None:
    listed, alone = "source: hf:bert\ntarget: [a, b]\n", "source: hf:bert\ntarget: a\nrepository: r\n"
    assert _places(_read(tmp_path, listed, target="b"), tmp_path) == [("bert", "b", "artifacts/repository/b")]
    assert _places(_read(tmp_path, listed, target=["c", "d"], repository="/r"), tmp_path) == [
        *(("bert", "c", "/r/c"), ("bert", "d", "/r/d"))
    ]
    assert _places(_read(tmp_path, alone, target=["a", "b"]), tmp_path) == [("bert", "a", "r/a"), ("bert", "b", "r/b")]
    assert _places(_read(tmp_path, alone, target="b"), tmp_path) == [("bert", "b", "r")]
    with pytest.raises(UsageError, match="'target' names 'a' more than once"):
        _read(tmp_path, alone, target=["a", "a"])
    twice = "models:\n  - {source: hf:bert, target: [a]}\n  - {source: hf:bert, target: [b]}\n"
    with pytest.raises(UsageError, match="is called 'bert' too"):
        _read(tmp_path, twice, target="c")


def test_one_name_for_several_targets_is_one_models(tmp_path: Path) -> None:
    found = _read(tmp_path, "source: hf:bert\ntarget: [a, b]\n", name="typed")
    assert [(model.name, model.spec.name) for model in found.models] == [("typed", "typed")] * 2


def test_a_spec_survives_json() -> None:
    written = {"source": "hf:bert", "shapes": {"a": "1x1:8x64:32x256"}, "inputs": {"a": {"dims": ["batch", 3]}}}
    spec = make_spec(written)
    told = spec.model_dump(mode="json")
    assert told["shapes"] == written["shapes"]
    assert make_spec(json.loads(json.dumps(told))) == spec
    assert make_spec(spec.model_dump()) == spec


def test_the_spec_in_a_release_is_taken_whatever_its_paths_are_called(tmp_path: Path) -> None:
    model = tmp_path / "a $HOME of ${x}$$"
    model.mkdir()
    limits = ToleranceChange(max_relative=2e-5, quantile_relative=1e-30, min_cosine=0)
    shape = InputRange(min=(1,), opt=(8,), max=(32,))
    spec = ModelSpec(source=f"hf:{model}", artifacts=f"{model}/a", tolerances={"$y": limits}, shapes={"$x": shape})
    then = {"load_into": ("grpc://localhost:8001",), "publish": (Destination(to="store"),)}
    of_then = spec.model_copy(update=then)
    source = SourceModel(
        scheme="hf", location="", revision=None, licence=None, digest="", random_weights=False, trust_remote_code=False
    )
    reference = parse_reference(spec.source, relative_to=tmp_path)
    text = reproduction(of_then, reference, source, relative_to=tmp_path, data=None)["spec.yaml"]
    found = _read(tmp_path, text).models[0].spec
    assert found == spec.model_copy(update={"repository": f"{model}/a/repository"})


def test_a_release_names_its_data_in_full_and_finds_a_function_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    (folder / "mine.py").write_text("")
    source = SourceModel(
        scheme="hf", location="", revision=None, licence=None, digest="", random_weights=False, trust_remote_code=False
    )

    def again(**data: str) -> tuple[ModelSpec, str]:
        spec = make_spec({"source": "hf:bert", "data": data, "lowering": {"autocast": "env/python"}})
        reference = parse_reference(f"hf:{folder}", relative_to=folder)
        made = reproduction(spec, reference, source, relative_to=folder, data=None)
        return _read(tmp_path, made["spec.yaml"]).models[0].spec, made["reproduce.sh"]

    spec, script = again(path="a.csv")
    assert spec.data is not None
    assert (spec.data.path, spec.lowering.autocast) == (str(folder / "a.csv"), str(folder / "env/python"))
    assert "PYTHONPATH" not in script
    _, script = again(entry_point="mine:texts")
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / "plansmith"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import mine; print(mine.__file__)"\n')
    program.chmod(0o755)
    (tmp_path / "reproduce.sh").write_text(script)
    found = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "reproduce.sh"], cwd=tmp_path, env=found, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folder / "mine.py")


def test_what_is_wrong_is_shown_with_its_line_whichever_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    tab = "found character '\\t' that cannot start any token"
    for text, says in (
        ("source: [onnx:x\nname: a\n", "line 2, column 5: expected ',' or ']', but got ':'"),
        ("source: onnx:x\nname:\ta: b\n", f"line 2, column 6: {tab}"),
        ("source:\tonnx:x\nshapes:\t\tx\n", f"line 1, column 8: {tab}"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError) as refused:
            read_specs(path, {})
        assert refused.value.message.startswith(f"{path} is not YAML: {says}")


def test_a_server_is_noted_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("{source: hf:one, tritonserver: server}")
    assert read_specs(Path("one.yaml"), {}).models[0].spec.tritonserver == str(tmp_path / "server")
    assert values_of_options({"tritonserver": "server"}) == {"tritonserver": str(tmp_path / "server")}
