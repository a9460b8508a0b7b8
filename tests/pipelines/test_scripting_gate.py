"""A script answers a release's cases: what it is asked, what is kept of its answers, what ends it."""

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
from plansmith.pipelines import build
from plansmith.pipelines.cases import read_case, store_case
from plansmith.pipelines.requests import JoinJob, ScriptRequest
from plansmith.records.model import Tensor
from plansmith.records.pipeline import Pipeline, RawCase, Script

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
        label: its label.
        refuses: says why it refuses a text.
    """

    label: str
    refuses: str = ""
    requests: list[Arrays] = field(default_factory=list)

    def __call__(self, feed: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        assert not parameters
        self.requests.append(feed)
        if self.refuses:
            raise GateError(self.refuses)
        lengths = np.array([[len(text)] for text in feed["text"][:, 0]], np.float32)
        return {
            "label": np.full(lengths.shape, self.label.encode(), object),
            "score": lengths / 10,
        }


@dataclass
class Gate:
    """Runs a script on two models.

    Args:
        folder: takes the script and what is asked.
        models: by name, as the source's library has them.
        largest: batch.
    """

    folder: Path
    models: dict[str, Model]
    largest: int = 8

    def __call__(self, text: str) -> Script:
        """What is found of a script."""
        (self.folder / "route.py").write_text(text)
        cases = tuple(
            store_case(name, {"text": column(*texts)}, {"label": column(*texts)}, "raw", self.folder)
            for name, texts in REQUESTS.items()
        )
        request = ScriptRequest.model_construct(
            models={name: JoinJob.model_construct() for name in self.models},
            folders=dict.fromkeys(self.models, self.folder),
            pipeline=_pipeline(cases),
            largest=self.largest,
            file=self.folder / "route.py",
            out=self.folder / "out",
        )
        messages: list[str] = []
        result = build.script(request, messages.append)
        assert messages == [f"running the script on {name}" for name in REQUESTS]
        return result


def _pipeline(cases: tuple[RawCase, ...]) -> Pipeline:
    around: dict[str, Any] = {"input": "text", "output": "labels", "before": (), "after": (), "source": "a library"}
    return Pipeline(**around, cases=cases, inputs=(TEXT,), outputs=(LABEL, SCORE))


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """With two models."""
    new_gate = Gate(tmp_path, {"main": Model("mood"), "topics": Model("topic")})

    def model(_: Any, name: str, progress: Any) -> Any:
        del progress
        draft: Any = SimpleNamespace(inputs=(TEXT,), outputs=(LABEL, SCORE), source=f"the library of {name}")
        return build._Model(draft, new_gate.models[name])

    monkeypatch.setattr(build, "_model", model)
    return new_gate


def test_stable_script_kept_with_answers(gate: Gate) -> None:
    """A script that answers the same again is kept, with what it answers."""
    result = gate(ROUTE)
    assert (result.outputs, result.refused, result.source) == (
        *((LABEL, SCORE), ()),
        "the library of main; the library of topics",
    )
    assert [(entry.name, entry.rows) for entry in result.cases] == [("short", 1), ("empty", 1), ("mixed", 4)]
    feed, answer = read_case(gate.folder / "out" / result.cases[2].file)
    assert feed["text"].tolist() == column(*REQUESTS["mixed"]).tolist()
    assert answer["label"].tolist() == [[b"mood"]] * 4
    score: NDArray[Any] = answer["score"]
    np.testing.assert_allclose(score[:, 0], [0.1, 1.1, 0.2, 2.3], rtol=1e-6)


def test_request_fits_all_served_models(gate: Gate) -> None:
    """A request is no larger than what all models are served with."""
    gate.largest = 2
    result = gate(PLAIN)
    assert [item.rows for item in result.cases] == [1, 1, 2]
    assert {len(feed["text"]) for model in gate.models.values() for feed in model.requests} == {1, 2}


def test_model_answers_made_once(gate: Gate) -> None:
    """The models' own answers are made once for a request."""
    gate(PLAIN)
    assert len(gate.models["main"].requests) == len(REQUESTS)
    assert gate.models["topics"].requests == []


CHANCE = """
import itertools
import numpy as np

OUTPUTS = {"label": ("string", ["batch", 1])}
number = itertools.count()

def answer(inputs, models):
    return {"label": np.array([[str(next(number))]] * len(inputs["text"]))}
"""


def test_unstable_script_refused(gate: Gate) -> None:
    """A script that answers something else each time does not pass."""
    with pytest.raises(GateError, match="request 'short': asked twice, the script gives two answers"):
        gate(CHANCE)


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


def test_own_refusal_noted(gate: Gate) -> None:
    """What the script refuses of itself is noted."""
    result = gate(REFUSING)
    assert result.refused == ("empty",)
    assert [item.name for item in result.cases] == ["short", "mixed"]


def test_part_refusal_can_be_caught(gate: Gate) -> None:
    """A part that refuses refuses the request unless the script catches it."""
    gate.models["main"].refuses = "text is no UTF-8"
    with pytest.raises(UsageError, match="refuses every request"):
        gate(PLAIN)
    caught = """
from plansmith_served.scripting import Refused

def answer(inputs, models):
    try:
        return models["main"](text=inputs["text"])
    except Refused:
        return models["topics"](text=inputs["text"])
"""
    result = gate(caught)
    assert (result.refused, len(result.cases)) == ((), 3)


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
def test_unusable_script_told_what_next(text: str, words: str, remedy: str, gate: Gate) -> None:
    """A script that cannot be used ends the check with what to do."""
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
def test_malformed_outputs_show_right_form(told: Any, gate: Gate) -> None:
    """Outputs in another form are refused with one that is right."""
    with pytest.raises(UsageError, match=r"OUTPUTS in route\.py does not say what the script answers with") as refused:
        gate(f"OUTPUTS = {told!r}\n{PLAIN}")
    assert 'write OUTPUTS = {"label": ("string", ["batch", 1])' in refused.value.remedy


def test_unknown_triton_dtype_lists_known(gate: Gate) -> None:
    """A dtype that Triton does not have is told with those that it has."""
    with pytest.raises(UsageError, match=r"gives label the dtype 'text', which is none that Triton has") as refused:
        gate(f"OUTPUTS = {{'label': ('text', ['batch', 1])}}\n{PLAIN}")
    assert "string" in refused.value.remedy


def test_outputs_may_be_fewer(gate: Gate) -> None:
    """Outputs may be fewer than the models and of any width."""
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
    result = gate(text)
    assert [(output.name, output.dtype, output.dims) for output in result.outputs] == [
        ("length", "int64", ("batch", 1)),
        ("words", "string", ("batch", "most")),
    ]
