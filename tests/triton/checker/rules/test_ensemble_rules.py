"""Ensembles whose tensors or members do not fit are found, and those that Triton serves are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from ....support.checker.backend_rules import broken, findings
from ....support.checker.graphs import content, graph

if TYPE_CHECKING:
    from ....support.checker.written import Written

MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
FIRST = """backend: "python" max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] }
"""
SECOND = """backend: "python" max_batch_size: 16
input { name: "ids" data_type: TYPE_INT64 dims: [ 64 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] }
"""
ENSEMBLE = """platform: "ensemble" max_batch_size: 8
input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] }
ensemble_scheduling {
  step { model_name: "first" model_version: -1
    input_map { key: "TEXT" value: "text" } output_map { key: "IDS" value: "ids" } }
  step { model_name: "second" model_version: -1
    input_map { key: "ids" value: "ids" } output_map { key: "scores" value: "scores" } }
}
"""
EMPTY = {"1/note": b""}


def changed(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def put(
    written: Written,
    ensemble: Mapping[str, str] | None = None,
    first: Mapping[str, str] | None = None,
    second: Mapping[str, str] | None = None,
) -> None:
    """A pipeline of two models with changes to the three configurations."""
    written.add("first", changed(FIRST, first or {}), {"1/model.py": MODEL})
    written.add("second", changed(SECOND, second or {}), {"1/model.py": MODEL})
    written.add("both", changed(ENSEMBLE, ensemble or {}), EMPTY)


Changes = dict[str, str]
TAKE_IDS = 'input_map { key: "ids" value: "ids" }'
GIVE_SCORES = 'output_map { key: "scores" value: "scores" }'
MISTAKES: dict[str, tuple[str, Changes, Changes, Changes]] = {
    "a backend": ("fields", {'platform: "ensemble"': 'platform: "ensemble" backend: "python"'}, {}, {}),
    "instances": ("fields", {"input {": "instance_group { count: 1 } input {"}, {}, {}),
    "an optimization": ("fields", {"input {": "optimization { } input {"}, {}, {}),
    "a warm-up": ("fields", {"input {": 'model_warmup { name: "w" } input {'}, {}, {}),
    "another platform": ("platform", {'"ensemble"': '"onnxruntime_onnx"'}, {}, {}),
    "no platform": ("platform", {'platform: "ensemble"': ""}, {}, {}),
    "a step without a model": ("step", {'model_name: "first"': ""}, {}, {}),
    "a step that reads nothing": ("step", {TAKE_IDS: ""}, {}, {}),
    "a step that writes nothing": ("step", {GIVE_SCORES: ""}, {}, {}),
    "a model that is not there": ("member", {'"first"': '"third"'}, {}, {}),
    "a version that is not written, and so 0": ("member", {"model_version: -1": ""}, {}, {}),
    "a version that is not there": ("member", {"model_version: -1": "model_version: 3"}, {}, {}),
    "a tensor that is written twice": (
        "written-once unwritten",
        {'{ key: "IDS" value: "ids" }': '{ key: "IDS" value: "scores" }'},
        {"INT64": "FP32", "-1": "2"},
        {},
    ),
    "a tensor that nobody reads": (
        "unused",
        {'output_map { key: "IDS"': 'output_map { key: "MASK" value: "mask" } output_map { key: "IDS"'},
        {"output {": 'output { name: "MASK" data_type: TYPE_INT64 dims: [ -1 ] } output {'},
        {},
    ),
    "an input that nobody reads": (
        "unused",
        {"output {": 'input { name: "x" data_type: TYPE_FP32 dims: 1 } output {'},
        {},
        {},
    ),
    "an output that nobody writes": (
        "unwritten",
        {"ensemble_sch": 'output { name: "y" data_type: TYPE_FP32 dims: 1 } ensemble_sch'},
        {},
        {},
    ),
    "a tensor that nobody writes": ("unwritten unused", {TAKE_IDS: 'input_map { key: "ids" value: "id" }'}, {}, {}),
    "steps that wait for each other": (
        "unwritten",
        {'{ key: "TEXT" value: "text" }': '{ key: "TEXT" value: "text" } input_map { key: "S" value: "scores" }'},
        {"output {": 'input { name: "S" data_type: TYPE_FP32 dims: [ 2 ] } output {'},
        {},
    ),
    "an input that a step writes": (
        "overwritten-input",
        {GIVE_SCORES: GIVE_SCORES + ' output_map { key: "T" value: "text" }'},
        {},
        {"input {": 'output { name: "T" data_type: TYPE_STRING dims: [ 1 ] } input {'},
    ),
    "an input of a member that is not there": (
        "mapping",
        {TAKE_IDS: f'{TAKE_IDS} input_map {{ key: "x" value: "text" }}'},
        {},
        {},
    ),
    "an output of a member that is not there": (
        "mapping",
        {GIVE_SCORES: 'output_map { key: "logits" value: "scores" }'},
        {},
        {},
    ),
    "an input of a member that is not mapped": (
        "mapping",
        {},
        {},
        {"output {": 'input { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] } output {'},
    ),
    "members of two dtypes": ("dtype", {}, {"INT64": "INT32"}, {}),
    "an ensemble of another dtype": ("dtype", {"TYPE_FP32": "TYPE_FP16"}, {}, {}),
    "members of two sizes": ("shape", {}, {"-1": "32"}, {}),
    "members of two ranks": ("shape", {}, {"-1": "-1, -1"}, {}),
    "an ensemble of another size": ("shape", {"dims: [ 2 ]": "dims: [ 3 ]"}, {}, {}),
    "a larger batch than a member's": ("batch-size", {}, {"size: 8": "size: 4"}, {}),
    "a reshape of its own": ("reshape", {"dims: [ 2 ]": "dims: [ 1, 2 ] reshape { shape: [ 2 ] }"}, {}, {}),
}


@pytest.mark.parametrize(("rule", "ensemble", "first", "second"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_found_alone(rule: str, ensemble: Changes, first: Changes, second: Changes, written: Written) -> None:
    """R13."""
    put(written, ensemble, first, second)
    results = findings(written.root)
    assert {item.rule for item in results} == {f"ensemble.{item}" for item in rule.split()}
    assert {item.model for item in results} == {"both"}


SOUND: dict[str, tuple[Changes, Changes, Changes]] = {
    "all as it is": ({}, {}, {}),
    "a named version that is there": ({"model_version: -1": "model_version: 1"}, {}, {}),
    "an input that may be left out": (
        {},
        {},
        {"output {": 'input { name: "mask" optional: true data_type: TYPE_INT64 dims: [ -1 ] } output {'},
    ),
    "a member that does not batch and has all dims": (
        {},
        {},
        {"size: 16": "size: 0", "[ 64 ]": "[ -1, 64 ]", "[ 2 ]": "[ -1, 2 ]"},
    ),
    "an ensemble that does not batch": (
        {"size: 8": "size: 0"},
        {"size: 8": "size: 0"},
        {"size: 16": "size: 0"},
    ),
    "a tensor that two steps read": (
        {TAKE_IDS: f'{TAKE_IDS} input_map {{ key: "again" value: "ids" }}'},
        {},
        {"output {": 'input { name: "again" data_type: TYPE_INT64 dims: [ -1 ] } output {'},
    ),
    "an inner tensor that is an output, too": (
        {"ensemble_sch": 'output { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ensemble_sch'},
        {},
        {},
    ),
    "a decoupled member": ({}, {"output {": "model_transaction_policy { decoupled: true } output {"}, {}),
}


@pytest.mark.parametrize(("ensemble", "first", "second"), SOUND.values(), ids=SOUND.keys())
def test_what_loads_is_passed(ensemble: Changes, first: Changes, second: Changes, written: Written) -> None:
    put(written, ensemble, first, second)
    assert broken(written.root) == set()


def test_finding_names_tensor_line(written: Written) -> None:
    """A finding names the line of the tensor."""
    put(written, first={"INT64": "INT32"})
    (finding,) = findings(written.root)
    assert (finding.place, finding.line) == ("both/config.pbtxt", 6)
    assert finding.message == "ids is TYPE_INT32 for first, and TYPE_INT64 for second (ids)"


def test_empty_ensemble_found(written: Written) -> None:
    """An ensemble of nothing is found."""
    written.add("both", 'platform: "ensemble"', EMPTY)
    assert broken(written.root) == {"ensemble.platform"}


def ensemble_of(*members: str) -> str:
    """An ensemble of models that have x and give y."""
    names = ["x", *(f"t{number}" for number in range(1, len(members))), "y"]
    steps = "".join(
        f'step {{ model_name: "{member}" model_version: -1 input_map {{ key: "x" value: "{names[number]}" }}'
        f' output_map {{ key: "y" value: "{names[number + 1]}" }} }}\n'
        for number, member in enumerate(members)
    )
    return (
        'platform: "ensemble" input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }\n'
        f'output {{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }}\nensemble_scheduling {{ {steps} }}\n'
    )


ONE = """backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
DECOUPLED = ONE + "model_transaction_policy { decoupled: true }\n"


def test_nested_ensemble_passes_unless_itself(written: Written) -> None:
    """An ensemble in an ensemble is passed, unless it is itself."""
    written.add("one", ONE, {"1/model.py": MODEL})
    rings = {"self": ["self"], "a": ["b"], "b": ["a"]}
    for name, members in {"inner": ["one"], "outer": ["inner", "one"], **rings}.items():
        written.add(name, ensemble_of(*members), EMPTY)
    written.add("behind", ensemble_of("a"), EMPTY)
    assert {(finding.model, finding.rule) for finding in findings(written.root)} == {
        (name, "ensemble.cycle") for name in rings
    }


JOIN = """backend: "python" input { name: "l" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "r" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""


def joined(left: str, right: str) -> str:
    """An ensemble that gives its input to two models, and both answers to a third."""
    return f"""platform: "ensemble"
input {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }} output {{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }}
ensemble_scheduling {{
  step {{ model_name: "{left}" model_version: -1 input_map {{ key: "x" value: "x" }}
    output_map {{ key: "y" value: "l" }} }}
  step {{ model_name: "{right}" model_version: -1 input_map {{ key: "x" value: "x" }}
    output_map {{ key: "y" value: "r" }} }}
  step {{ model_name: "join" model_version: -1 input_map {{ key: "l" value: "l" }} input_map {{ key: "r" value: "r" }}
    output_map {{ key: "y" value: "y" }} }}
}}
"""


def test_decoupled_outputs_not_read_together(written: Written) -> None:
    """What comes from different decoupled models is not read together."""
    for name, config in {"plain": ONE, "many": DECOUPLED, "more": DECOUPLED, "join": JOIN}.items():
        written.add(name, config, {"1/model.py": MODEL})
    written.add("wrapped", ensemble_of("many"), EMPTY)
    for name, (left, right) in {
        "two": ("many", "more"),
        "mixed": ("many", "plain"),
        "hidden": ("wrapped", "plain"),
        "none": ("plain", "plain"),
    }.items():
        written.add(name, joined(left, right), EMPTY)
    written.add("chain", ensemble_of("many", "plain", "more"), EMPTY)
    assert {(finding.model, finding.rule) for finding in findings(written.root)} == {
        (name, "ensemble.decoupled") for name in ("two", "mixed", "hidden")
    }


def test_unconfigured_member_follows_graph(written: Written) -> None:
    """ONNX Runtime's backend completes it, with a batch of 4 where the graph can be batched."""
    written.add("net", None, {"1/model.onnx": content(graph())})
    text = changed(ensemble_of("net"), {"[ 2 ]": "[ 3 ]"})
    written.add("fits", f"{text}max_batch_size: 4", EMPTY)
    written.add("size", f"{text}max_batch_size: 4".replace("[ 3 ]", "[ 5 ]"), EMPTY)
    written.add("batch", f"{text}max_batch_size: 16", EMPTY)
    written.add("names", f"{text}max_batch_size: 4".replace('key: "x"', 'key: "z"'), EMPTY)
    expected = {("size", "ensemble.shape"), ("batch", "ensemble.batch-size"), ("names", "ensemble.mapping")}
    assert {(finding.model, finding.rule) for finding in findings(written.root) if finding.model != "net"} == expected
    more = ["--backend-config=onnxruntime,default-max-batch-size=16"]
    left = {
        (finding.model, finding.rule) for finding in findings(written.root, arguments=more) if finding.model != "net"
    }
    assert left == expected - {("batch", "ensemble.batch-size")}


def test_server_completed_member_left_alone(written: Written) -> None:
    """A member that only the server can complete is left to it."""
    written.add("first", 'backend: "python"', {"1/model.py": MODEL})
    written.add("second", SECOND, {"1/model.py": MODEL})
    written.add("both", ENSEMBLE, EMPTY)
    assert broken(written.root) == set()


def test_empty_version_folder_noted(written: Written) -> None:
    """An empty folder of a version is noted."""
    put(written)
    (written.root / "both" / "1" / "note").unlink()
    (finding,) = findings(written.root)
    assert (finding.rule, finding.severity, finding.place) == ("ensemble.placeholder", "note", "both/1")
