"""A script is held against models that answer in two ways: what it is asked, what counts as the same, what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.errors import GateError, UsageError
from plansmith.pipelines import script
from plansmith.pipelines.agreement import refusals
from plansmith.pipelines.cases import read_case, store_case
from plansmith.pipelines.requests import JoinJob, ScriptRequest
from plansmith.records.model import Precision, Tensor
from plansmith.records.pipeline import Pipeline, RawCase, Script
from plansmith.records.validation import ValidationReport
from plansmith.validation.comparison import LIMITS

from ..support.pipelines.columns import column

Arrays = Mapping[str, NDArray[Any]]

TEXT = Tensor(name="text", dtype="string", dims=("batch", 1))
LABEL = Tensor(name="label", dtype="string", dims=("batch", 1))
SCORE = Tensor(name="score", dtype="float32", dims=("batch", 1))
REQUESTS = {"short": ("a cat",), "empty": ("",), "mixed": ("a", "longer text", "ab", "the longest text of all")}
PLAIN = 'def answer(inputs, models):\n    return models["main"](text=inputs["text"])\n'
ROUTE = """
import numpy as np

def answer(inputs, models):
    said = models["main"](text=inputs["text"])
    if said["score"][0, 0] > 0.5:
        return models["topics"](text=inputs["text"])
    return said
"""


@dataclass
class Model:
    """Scores texts by their length, and keeps what it was asked.

    Args:
        said: its label.
        off: what is wrong with its scores.
        refuses: says why it refuses a text.
    """

    said: str
    off: float = 0.0
    refuses: str = ""
    asked: list[Arrays] = field(default_factory=list)

    def __call__(self, case: str, feed: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        assert case in REQUESTS
        assert not parameters
        self.asked.append(feed)
        if self.refuses:
            raise GateError(self.refuses)
        lengths = np.array([[len(text)] for text in feed["text"][:, 0]], np.float32)
        return {
            "label": np.full(lengths.shape, self.said.encode(), object),
            "score": lengths / 10 + np.float32(self.off),
        }


@dataclass
class Gate:
    """What holds a script against two models.

    Args:
        folder: takes the script and what is asked.
        models: by name, as the source's library and as the server has them.
        largest: batch.
    """

    folder: Path
    models: dict[str, tuple[Model, Model]]
    largest: int = 8

    def __call__(self, text: str, *, precision: Precision = Precision.FP32) -> Script:
        """What is found of a script."""
        (self.folder / "route.py").write_text(text)
        cases = tuple(
            store_case(name, {"text": column(*texts)}, {"label": column(*texts)}, "raw", self.folder)
            for name, texts in REQUESTS.items()
        )
        tolerances = {"logits": LIMITS[Precision.FP32].tolerance}
        report = ValidationReport.model_construct(tolerances=tolerances, comparisons=(), precision=precision)
        request = ScriptRequest.model_construct(
            models={name: JoinJob.model_construct(validation=report) for name in self.models},
            folders=dict.fromkeys(self.models, self.folder),
            pipeline=_pipeline(cases),
            largest=self.largest,
            file=self.folder / "route.py",
            out=self.folder / "out",
        )
        said: list[str] = []
        found = script.script(request, said.append)
        assert said == [f"running the script on {name}" for name in REQUESTS]
        return found


def _pipeline(cases: tuple[RawCase, ...]) -> Pipeline:
    around: dict[str, Any] = {"input": "text", "output": "labels", "before": (), "after": (), "source": "a library"}
    return Pipeline(**around, cases=cases, inputs=(TEXT,), outputs=(LABEL, SCORE))


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """With two models that are served as they are."""
    made = Gate(tmp_path, {"main": (Model("mood"), Model("mood")), "topics": (Model("topic"), Model("topic"))})

    def model(_: Any, job: Any, name: str, progress: Any) -> Any:
        del job, progress
        draft: Any = SimpleNamespace(inputs=(TEXT,), outputs=(LABEL, SCORE), source=f"the library of {name}")
        own, served = made.models[name]
        return script._Model(draft, own, served)

    monkeypatch.setattr(script, "_model", model)
    return made


def test_a_script_that_answers_the_same_either_way_is_kept_with_what_it_answers(gate: Gate) -> None:
    found = gate(ROUTE)
    assert refusals(found) == []
    assert (found.outputs, found.refused, found.source) == (
        *((LABEL, SCORE), ()),
        "the library of main; the library of topics",
    )
    assert [(one.name, one.rows) for one in found.cases] == [("short", 1), ("empty", 1), ("mixed", 4)]
    assert all(one.same for one in found.agreements)
    feed, answer = read_case(gate.folder / "out" / found.cases[2].file)
    assert feed["text"].tolist() == column(*REQUESTS["mixed"]).tolist()
    assert answer["label"].tolist() == [[b"mood"]] * 4
    score: NDArray[Any] = answer["score"]
    np.testing.assert_allclose(score[:, 0], [0.1, 1.1, 0.2, 2.3], rtol=1e-6)


def test_a_request_is_no_larger_than_what_all_models_are_served_with(gate: Gate) -> None:
    gate.largest = 2
    found = gate(PLAIN)
    assert [one.rows for one in found.cases] == [one.rows for one in found.agreements] == [1, 1, 2]
    assert {len(feed["text"]) for pair in gate.models.values() for one in pair for feed in one.asked} == {1, 2}


def test_the_models_own_answers_are_made_once_for_a_request(gate: Gate) -> None:
    gate(PLAIN)
    own, served = gate.models["main"]
    assert (len(own.asked), len(served.asked)) == (len(REQUESTS), len(REQUESTS))
    assert gate.models["topics"][0].asked == []


def test_a_rounding_error_that_makes_the_script_decide_otherwise_is_no_rounding_error(gate: Gate) -> None:
    gate.models["main"][1].off = 1e-6
    assert refusals(gate(PLAIN)) == []
    found = gate(ROUTE.replace("> 0.5", ">= 0.5000005"))
    assert refusals(found) == ["short: label of row 0 is 'topic', and should be 'mood'"]


def test_a_label_alone_is_held_against_the_one_that_is_owed(gate: Gate) -> None:
    gate.models["main"][1].said = "other"
    found = gate(f'OUTPUTS = {{"label": ("string", ["batch", 1])}}\n{PLAIN}')
    assert refusals(found)[0] == "short: label of row 0 is 'other', and should be 'mood'"


CHANCE = """
import itertools
import numpy as np

OUTPUTS = {"label": ("string", ["batch", 1])}
number = itertools.count()

def answer(inputs, models):
    return {"label": np.array([[str(next(number))]] * len(inputs["text"]))}
"""


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_a_script_that_answers_something_else_each_time_is_told_whatever_texts_may_differ(
    precision: Precision, gate: Gate
) -> None:
    found = refusals(gate(CHANCE, precision=precision))
    assert [line for line in found if "asked twice" in line] == [
        f"{name}: asked twice, the script gives two answers" for name in REQUESTS
    ]
    assert len(found) == (3 if precision is Precision.FP16 else 3 + 1 + 1 + 4)


REFUSING = """
from plansmith_served.scripting import Refused

def answer(inputs, models):
    if not all(inputs["text"].flat):
        raise Refused("no text is empty")
    said = models["main"](text=inputs["text"])
    if said["score"][0, 0] > 0.6:
        raise Refused("too long")
    return said
"""


def test_what_the_script_refuses_of_itself_is_noted_and_is_no_difference(gate: Gate) -> None:
    found = gate(REFUSING)
    assert found.refused == ("empty",)
    assert [one.name for one in found.cases] == ["short", "mixed"]
    assert refusals(found) == []
    assert [one.case for one in found.agreements] == ["short", "empty", "mixed"]


def test_what_it_refuses_only_as_served_or_only_as_owed_is_a_difference(gate: Gate) -> None:
    gate.models["main"][1].off = 0.5
    assert "short: it is refused (too long), and should be answered" in refusals(gate(REFUSING))
    gate.models["main"][0].off, gate.models["main"][1].off = 0.5, 0.0
    assert "short: it is answered, and should be refused (too long)" in refusals(gate(REFUSING))


def test_a_part_that_refuses_refuses_the_request_unless_the_script_catches_it(gate: Gate) -> None:
    gate.models["main"][1].refuses = "text is no UTF-8"
    assert refusals(gate(PLAIN))[0] == "short: it is refused (text is no UTF-8), and should be answered"
    gate.models["main"][0].refuses = "text is no UTF-8"
    caught = """
from plansmith_served.scripting import Refused

def answer(inputs, models):
    try:
        return models["main"](text=inputs["text"])
    except Refused:
        return models["topics"](text=inputs["text"])
"""
    found = gate(caught)
    assert (refusals(found), found.refused, len(found.cases)) == ([], (), 3)


REFUSES_ALL = """
from plansmith_served.scripting import Refused

def answer(inputs, models):
    raise Refused("never")
"""
WRONG: dict[str, tuple[str, str, str]] = {
    "it cannot be imported": ("import nowhere\n" + PLAIN, "route.py cannot be imported: ModuleNotFoundError", "mend"),
    "it fails": (
        "def answer(inputs, models):\n    return models['x']\n",
        "request 'short': the script failed: NoSuchModel: there is no model 'x'; there are main, topics",
        "mend the script",
    ),
    "its answer lacks an output": (
        "def answer(inputs, models):\n    return {}\n",
        "request 'short': the script's answer has no 'label'; it has nothing",
        "mend the script",
    ),
    "it refuses everything": (
        REFUSES_ALL,
        "route.py refuses every request that was tried",
        "have it answer some",
    ),
}


@pytest.mark.parametrize(("text", "words", "remedy"), WRONG.values(), ids=WRONG.keys())
def test_a_script_that_cannot_be_used_ends_it_with_what_to_do(text: str, words: str, remedy: str, gate: Gate) -> None:
    with pytest.raises(UsageError) as refused:
        gate(text)
    assert refused.value.message.startswith(words)
    assert refused.value.remedy.startswith(remedy)


OUTPUTS: dict[str, Any] = {
    "a list": ["label"],
    "no tensors": {},
    "a dtype alone": {"label": "string"},
    "no batch": {"label": ("string", [1])},
    "another batch": {"label": ("string", ["rows", 1])},
    "the batch alone": {"label": ("string", ["batch"])},
    "no dims": {"label": ("string", 1)},
    "a name that is none": {1: ("string", ["batch", 1])},
}


@pytest.mark.parametrize("told", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_outputs_in_another_form_are_refused_with_one_that_is_right(told: Any, gate: Gate) -> None:
    with pytest.raises(UsageError, match=r"OUTPUTS in route\.py does not say what the script answers with") as refused:
        gate(f"OUTPUTS = {told!r}\n{PLAIN}")
    assert 'write OUTPUTS = {"label": ("string", ["batch", 1])' in refused.value.remedy


def test_a_dtype_that_triton_does_not_have_is_told_with_those_that_it_has(gate: Gate) -> None:
    with pytest.raises(UsageError, match=r"gives label the dtype 'text', which is none that Triton has") as refused:
        gate(f"OUTPUTS = {{'label': ('text', ['batch', 1])}}\n{PLAIN}")
    assert "string" in refused.value.remedy


def test_outputs_may_be_fewer_than_the_models_and_of_any_width(gate: Gate) -> None:
    text = """
import numpy as np

OUTPUTS = {"length": ("int64", ("batch", 1)), "words": ("string", ["batch", "most"])}

def answer(inputs, models):
    rows = [text.split() for text in inputs["text"][:, 0]]
    words = np.full((len(rows), max(map(len, rows))), b"", object)
    for row, found in enumerate(rows):
        words[row, : len(found)] = found
    return {"length": np.array([[len(row)] for row in rows]), "words": words}
"""
    found = gate(text)
    assert [(one.name, one.dtype, one.dims) for one in found.outputs] == [
        ("length", "int64", ("batch", 1)),
        ("words", "string", ("batch", "most")),
    ]
    assert refusals(found) == []
