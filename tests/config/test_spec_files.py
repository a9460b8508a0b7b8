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
from plansmith.config.triton.options import InstanceGroup
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
def test_wrong_spec_tells_all_lines(spec: RefusedSpec, tmp_path: Path) -> None:
    """A wrong spec is refused with all its problems and their lines."""
    with pytest.raises(UsageError) as refusal:
        _read(tmp_path, spec.text)
    message = str(refusal.value).replace(f"{tmp_path}/", "")
    assert not [fragment for fragment in spec.says if fragment not in message], message
    assert refusal.value.remedy
    assert len(message.splitlines()) <= _MOST_LINES


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_right_spec_is_taken(text: str, tmp_path: Path) -> None:
    spec_file = _read(tmp_path, text)
    assert spec_file.several == ("models:" in text or "target: [" in text)
    assert all(model.name for model in spec_file.models)


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
def test_endless_input_refused_on_screen(text: str, tmp_path: Path) -> None:
    """Endless input is refused on one screen."""
    with pytest.raises(UsageError) as refusal:
        _read(tmp_path, text)
    assert len(str(refusal.value)) < 4000


def test_model_values_override_defaults(tmp_path: Path) -> None:
    """A model starts from the defaults and its own values win."""
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
    assert {name: str(value) for name, value in own.shapes.items()} == {
        name: f"{size}x{size}:{size}x{size}:{size}x{size}" for name, size in (("a", 1), ("b", 4), ("c", 5))
    }
    assert set(plain.shapes) == {"a", "b"}
    assert own.tolerances["x"] == loose
    assert list(own.tolerances["y"].model_dump().values()) == strict
    for value, count in ((own.triton, 1), (plain.triton, 3)):
        assert value.dynamic_batching == DynamicBatching(max_queue_delay_microseconds=7)
        assert value.instance_group == (InstanceGroup(count=count),)


def test_data_paths_stay_as_written(tmp_path: Path) -> None:
    """Paths of data stay as written for the steps that know the folder."""
    text = "source: hf:bert\ndata: {path: ../a.csv}\n"
    for written in (text, "defaults:\n  " + text.replace("\n", "\n  ") + "\nmodels: [{}]\n"):
        spec = _read(tmp_path, written).models[0].spec
        assert spec.data is not None
        assert spec.data.path == "../a.csv"


def test_destinations_stay_as_written(tmp_path: Path) -> None:
    """Destinations stay as written, and those of several targets are apart."""
    text = "source: hf:bert\npublish: [../store, {to: s3://models/prod/, aliases: [champion]}]\n"
    (spec,) = (model.spec for model in _read(tmp_path, text).models)
    assert [(destination.to, destination.aliases) for destination in spec.publish] == [
        ("../store", ("current",)),
        ("s3://models/prod/", ("champion",)),
    ]
    several = _read(tmp_path, f"{text}target: [triton-26.03, triton-26.08-cpu]\n").models
    assert [[destination.to for destination in model.spec.publish] for model in several] == [
        [f"../store/{target}", f"s3://models/prod/{target}"] for target in ("triton-26.03", "triton-26.08-cpu")
    ]


def test_model_destinations_replace_defaults(tmp_path: Path) -> None:
    """Destinations of a model replace those of the defaults."""
    text = "defaults: {publish: [a, b]}\nmodels: [source: hf:bert, {source: hf:bert, name: b, publish: c}]\n"
    ours, theirs = (model.spec for model in _read(tmp_path, text).models)
    assert [destination.to for destination in ours.publish] == ["a", "b"]
    assert [destination.to for destination in theirs.publish] == ["c"]
    typed = read_specs(tmp_path / "model.yaml", {"publish": ["/elsewhere"]}).models
    assert [[destination.to for destination in model.spec.publish] for model in typed] == [["/elsewhere"]] * 2


_DATA = """
defaults:
  data: {path: a.csv, evaluation: 500, columns: {text: body}}
models:
  - {source: timm:one, data: {metric: none, columns: {label: stars}}}
  - {source: timm:two, data: {dataset: org/set, split: test}}
"""


def test_data_merged_unless_place_differs(tmp_path: Path) -> None:
    """Data are merged and another place replaces the first."""
    first, two = (m.spec.data for m in _read(tmp_path, _DATA).models)
    assert first == DataSpec(path="a.csv", evaluation=500, metric="none", columns={"text": "body", "label": "stars"})
    assert two == DataSpec(dataset="org/set", split="test", evaluation=500, columns={"text": "body"})


def test_command_line_data_keeps_columns(tmp_path: Path) -> None:
    """Data of the command line leave columns counts and measure to the spec."""
    first, two = (m.spec.data for m in _read(tmp_path, _DATA, data={"path": "/typed.csv"}).models)
    assert first is not None
    assert (first.path, first.evaluation, first.metric) == ("/typed.csv", 500, "none")
    assert two == DataSpec(path="/typed.csv", evaluation=500, columns={"text": "body"})
    wrong = "source: hf:bert\ndata: {dataset: org/set, metric: f1}\n"
    with pytest.raises(UsageError, match=r"model\.yaml:2: 'data\.metric'"):
        _read(tmp_path, wrong, data={"path": "/typed.csv"})
    with pytest.raises(UsageError, match=r"command line: 'data\.path': must be text"):
        _read(tmp_path, wrong.replace(", metric: f1", ""), data={"path": 5})
    typed = _read(tmp_path, wrong.replace(", metric: f1", ""), data={"path": "/typed.csv"}).models[0].spec.data
    assert typed == DataSpec(path="/typed.csv")


def test_command_line_wins(tmp_path: Path) -> None:
    """The command line wins over models and defaults."""
    text = "defaults: {target: a}\n" + TWO.replace("name: two", "name: two\n    target: b")
    assert [model.spec.target for model in _read(tmp_path, text).models] == ["a", "b"]
    assert [model.spec.target for model in _read(tmp_path, text, target="c").models] == ["c", "c"]
    assert [model.name for model in _read(tmp_path, text, "two", name="typed").models] == ["typed"]
    for wrong in ("source: hf:bert\nengine: trt\n", f"defaults: {{engine: trt}}\n{TWO}"):
        assert _read(tmp_path, wrong, engine="onnxruntime").models[0].spec.engine == "onnxruntime"
    with pytest.raises(UsageError, match=r"^1 problem.*\n  command line: 'target': must be text"):
        _read(tmp_path, text, target=5)


def test_models_picked_by_name(tmp_path: Path) -> None:
    """Models are picked by the name they have or their source gives."""
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
    assert refusal.value.remedy == "choose from: one, two"


def test_command_line_keeps_several_models(tmp_path: Path) -> None:
    """A name or repository on the command line does not make one model of several."""
    with pytest.raises(UsageError, match="--name names one model, and 2 are to be compiled"):
        _read(tmp_path, TWO, name="x")
    text = "models:\n  - {source: hf:bert, repository: a}\n  - {source: hf:bert, repository: b}\n"
    with pytest.raises(UsageError, match=r"model\.yaml:3: the model in line 2 is called 'bert' too") as refusal:
        _read(tmp_path, text, repository="c")
    assert "leave the repository to the spec" in refusal.value.remedy


def test_suggested_option_exists() -> None:
    """What to type instead of a variable is an option that exists."""
    options = {option for parameter in compile_command.params for option in parameter.opts}
    for key in set(ModelSpec.model_fields) - {"source"}:
        typed = option_for((key,), "$X").partition(" ")[0]
        assert typed in options or (not typed and f"--{key.replace('_', '-')}" not in options), key


def _places(spec_file: SpecFile, folder: Path) -> list[tuple[str, str, str]]:
    """Name, target and repository of every model."""
    return [(m.name, m.spec.target, m.spec.repository.replace(f"{folder}/", "")) for m in spec_file.models]


def test_targets_make_models(tmp_path: Path) -> None:
    """Several targets make a model for each in a repository of its own."""
    spec_file = _read(tmp_path, "source: hf:bert\ntarget: [triton-26.03, sub/ours.yaml]\n")
    assert spec_file.several
    assert _places(spec_file, tmp_path) == [
        ("bert", "triton-26.03", "artifacts/repository/triton-26.03"),
        ("bert", f"{tmp_path}/sub/ours.yaml", "artifacts/repository/ours"),
    ]
    assert [model.label for model in spec_file.models] == ["bert for triton-26.03", "bert for ours"]
    same = {
        model.spec.model_copy(update={"target": "", "repository": ""}).model_dump_json() for model in spec_file.models
    }
    assert len(same) == 1
    named = _read(tmp_path, "source: hf:bert\ntarget: [a]\nrepository: r\nartifacts: x\n")
    assert _places(named, tmp_path) == [("bert", "a", "r/a")]


def test_single_target_stays_plain(tmp_path: Path) -> None:
    """One target that is not a list is treated as ever."""
    spec_file = _read(tmp_path, "source: hf:bert\ntarget: triton-26.03\n")
    assert not spec_file.several
    assert _places(spec_file, tmp_path) == [("bert", "triton-26.03", "")]
    assert spec_file.models[0].label == "bert"


def test_target_list_is_replaced(tmp_path: Path) -> None:
    """A list of targets replaces and is not merged, and makes one of a model's own target."""
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


def test_command_line_targets_win(tmp_path: Path) -> None:
    """Targets of the command line win and stay where the list has them."""
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


def test_shared_targets_keep_one_name(tmp_path: Path) -> None:
    """One name for several targets is that of one model."""
    spec_file = _read(tmp_path, "source: hf:bert\ntarget: [a, b]\n", name="typed")
    assert [(model.name, model.spec.name) for model in spec_file.models] == [("typed", "typed")] * 2


def test_a_spec_survives_json() -> None:
    written = {"source": "hf:bert", "shapes": {"a": "1x1:8x64:32x256"}, "inputs": {"a": {"dims": ["batch", 3]}}}
    spec = make_spec(written)
    document = spec.model_dump(mode="json")
    assert document["shapes"] == written["shapes"]
    assert make_spec(json.loads(json.dumps(document))) == spec
    assert make_spec(spec.model_dump()) == spec


def test_released_spec_takes_any_path(tmp_path: Path) -> None:
    """The spec in a release is taken whatever its paths are called."""
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
    result = _read(tmp_path, text).models[0].spec
    assert result == spec.model_copy(update={"repository": f"{model}/a/repository"})


def test_release_names_data_in_full(tmp_path: Path) -> None:
    """A release names its data in full and finds a function where it was."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    (folder / "mine.py").write_text("")
    source = SourceModel(
        scheme="hf", location="", revision=None, licence=None, digest="", random_weights=False, trust_remote_code=False
    )

    def again(**data: str) -> tuple[ModelSpec, str]:
        spec = make_spec({"source": "hf:bert", "data": data})
        reference = parse_reference(f"hf:{folder}", relative_to=folder)
        files = reproduction(spec, reference, source, relative_to=folder, data=None)
        return _read(tmp_path, files["spec.yaml"]).models[0].spec, files["reproduce.sh"]

    spec, script = again(path="a.csv")
    assert spec.data is not None
    assert spec.data.path == str(folder / "a.csv")
    assert "PYTHONPATH" not in script
    _, script = again(entry_point="mine:texts")
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / "plansmith"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import mine; print(mine.__file__)"\n')
    program.chmod(0o755)
    (tmp_path / "reproduce.sh").write_text(script)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "reproduce.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(folder / "mine.py")


def test_mistake_shown_with_line(tmp_path: Path) -> None:
    """What is wrong is shown with its line whichever library reads it."""
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


def test_server_noted_with_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is noted with its whole path."""
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("{source: hf:one, tritonserver: server}")
    assert read_specs(Path("one.yaml"), {}).models[0].spec.tritonserver == str(tmp_path / "server")
    assert values_of_options({"tritonserver": "server"}) == {"tritonserver": str(tmp_path / "server")}
