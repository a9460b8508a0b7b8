"""A script asks chains of models, equal steps once, and what it answers is what the release promises or a refusal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.pipelines.draft import script_text, write_model_files
from plansmith.pipelines.served.chains import Chains, Refused
from plansmith.pipelines.served.scripting import BadScript, load_script, run_script

from ..support.pipelines.columns import column

Arrays = Mapping[str, NDArray[Any]]

CHAINS = {
    "main": {
        "steps": [
            {"model": "tokens", "inputs": {"text": "text"}, "outputs": {"ids": "ids"}},
            {"model": "scorer", "inputs": {"input": "ids"}, "outputs": {"probability": "score", "label": "label"}},
        ],
        "outputs": ["score", "label"],
    },
    "topics": {
        "steps": [
            {"model": "tokens", "inputs": {"text": "text"}, "outputs": {"ids": "ids", "length": "length"}},
            {"model": "topics", "inputs": {"ids": "ids", "length": "length"}, "outputs": {"topic": "label"}},
        ],
        "outputs": ["label", "length"],
    },
}
OUTPUTS = [
    {"name": "label", "dtype": "string", "dims": ["batch", 1]},
    {"name": "score", "dtype": "float32", "dims": ["batch", 1]},
]
ROUTE = """
import numpy as np

def answer(inputs, models):
    first = models["main"](text=inputs["text"])
    if first["score"][0, 0] < 0.5:
        return {**first, "label": models["topics"](text=inputs["text"])["label"]}
    return first
"""


@dataclass
class RecordingModels:
    """Models that count the bytes of texts, and what they were asked."""

    log: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def __call__(
        self, model: str, feed: Arrays, outputs: Sequence[str], parameters: Mapping[str, Any]
    ) -> dict[str, NDArray[Any]]:
        del parameters
        self.log.append((model, tuple(outputs)))
        if model == "tokens":
            ids = np.array([[len(text)] for text in feed["text"][:, 0]], np.int64)
            if (ids > 99).any():
                raise Refused("a text is too long")
            return {"ids": ids, "length": ids}
        if model == "scorer":
            score = (feed["input"] / 10).astype(np.float32)
            return {"probability": score, "label": np.full(score.shape, b"scored", object)}
        return {"topic": np.array([[b"%d" % (a + b)] for (a,), (b,) in zip(feed["ids"], feed["length"], strict=True)])}

    @property
    def models(self) -> list[str]:
        return [model for model, _ in self.log]


@pytest.fixture
def recording_models() -> RecordingModels:
    return RecordingModels()


def run(
    folder: Path, script: str, recording_models: RecordingModels, *texts: str, outputs: Any = OUTPUTS
) -> dict[str, NDArray[Any]]:
    """What a script answers to texts."""
    file = folder / "script.py"
    file.write_text(script)
    return run_script(load_script(file), {"text": column(*texts)}, Chains(CHAINS, recording_models), outputs)


def test_script_branches_on_model_answer(tmp_path: Path, recording_models: RecordingModels) -> None:
    """A script branches on what a model answers."""
    sure = run(tmp_path, ROUTE, recording_models, "sentences", "are")
    assert sure["label"].tolist() == [[b"scored"], [b"scored"]]
    assert sure["score"].dtype == np.float32
    assert recording_models.models == ["tokens", "scorer"]
    unsure = run(tmp_path, ROUTE, recording_models, "so", "what")
    assert unsure["label"].tolist() == [[b"4"], [b"8"]]
    np.testing.assert_allclose(unsure["score"], [[0.2], [0.4]], rtol=1e-6)


def test_equal_chain_step_asked_once(tmp_path: Path, recording_models: RecordingModels) -> None:
    """An equal step of two chains is asked once, for all that either reads."""
    run(tmp_path, ROUTE, recording_models, "so")
    assert recording_models.log == [
        ("tokens", ("ids", "length")),
        ("scorer", ("probability", "label")),
        ("topics", ("topic",)),
    ]


def test_another_request_is_asked_anew(tmp_path: Path, recording_models: RecordingModels) -> None:
    (tmp_path / "script.py").write_text(ROUTE)
    module, chains = load_script(tmp_path / "script.py"), Chains(CHAINS, recording_models)
    feed = {"text": column("sentences")}
    for _ in range(2):
        run_script(module, feed, chains, OUTPUTS)
    assert recording_models.models == ["tokens", "scorer"] * 2


def test_writable_inputs_asked_each_time(tmp_path: Path, recording_models: RecordingModels) -> None:
    """What a script may write into is asked each time."""
    script = """
def answer(inputs, models):
    texts = inputs["text"].copy()
    first = models["main"](text=texts)
    texts[0, 0] = b"longer now"
    return models["main"](text=texts)
"""
    assert run(tmp_path, script, recording_models, "short")["score"].tolist() == [[1.0]]
    assert recording_models.models == ["tokens", "scorer"] * 2


@pytest.mark.parametrize("place", ['inputs["text"]', 'models["main"](text=inputs["text"])["label"]'])
def test_request_and_answers_read_only(place: str, tmp_path: Path, recording_models: RecordingModels) -> None:
    """Nobody writes into a request or into what models answered."""
    feed = {"text": column("short")}
    (tmp_path / "script.py").write_text(f"def answer(inputs, models):\n    {place}[0, 0] = b'other'\n")
    with pytest.raises(Refused, match="the script failed: ValueError: assignment destination is read-only"):
        run_script(load_script(tmp_path / "script.py"), feed, Chains(CHAINS, recording_models), OUTPUTS)
    feed["text"][0, 0] = b"the caller's own stays as it was"


def test_texts_written_as_python_strings(tmp_path: Path, recording_models: RecordingModels) -> None:
    """Texts may be written as Python has them."""
    script = """
import numpy as np

def answer(inputs, models):
    told = [models["main"](text=np.array([[text]], kind))["score"] for text, kind in
            (("ü", None), ("ü", object), (b"ab", None), (b"ab", object))]
    return {"label": np.array([["naïve"]]), "score": sum(told)}
"""
    answer = run(tmp_path, script, recording_models, "x")
    assert answer["label"].tolist() == [["naïve".encode()]]
    np.testing.assert_allclose(answer["score"], [[0.8]], rtol=1e-6)


FAILING = {
    "an exception": ("1 / 0", "the script failed: ZeroDivisionError: division by zero (line 4)"),
    "an exception of several lines": ("raise ValueError('one\\ntwo')", "the script failed: ValueError: one (line 4)"),
    "an exception without words": ("assert not inputs", "the script failed: AssertionError (line 4)"),
    "an exit": ("raise SystemExit(1)", "the script failed: SystemExit: 1 (line 4)"),
    "an unknown model": (
        "models['x']",
        "the script failed: NoSuchModel: there is no model 'x'; there are main, topics (line 4)",
    ),
    "another input": (
        "models['main'](txt=inputs['text'])",
        "the script failed: TypeError: the model 'main' takes text, and was given txt (line 4)",
    ),
    "no input": (
        "models['main']()",
        "the script failed: TypeError: the model 'main' takes text, and was given nothing (line 4)",
    ),
    "an input that is no array": (
        "models['main'](text='short')",
        "the script failed: TypeError: text is a str, and no array (line 4)",
    ),
    "an input of numbers among texts": (
        "models['main'](text=np.array([[1]], object))",
        "the script failed: TypeError: text holds a int, and no text (line 4)",
    ),
    "no answer": ("pass", "the script answered with a NoneType, and not with arrays by name"),
    "an answer that lacks an output": (
        "return {'label': inputs['text']}",
        "the script's answer has no 'score'; it has label",
    ),
    "an empty answer": ("return {}", "the script's answer has no 'label'; it has nothing"),
    "an output that is no array": (
        "return {'label': inputs['text'], 'score': 0.5}",
        "the script's answer: score is a float, and no array",
    ),
    "another dtype": (
        "return {'label': inputs['text'], 'score': np.zeros((1, 1))}",
        "the script's answer: score is float64, and has to be float32",
    ),
    "numbers for texts": (
        "return {'label': np.zeros((1, 1), np.float32)}",
        "the script's answer: label is float32, and has to be string",
    ),
    "objects for texts": (
        "return {'label': np.array([[None]])}",
        "the script's answer: label holds a NoneType, and no text",
    ),
    "another number of rows": (
        "return {'label': np.array([['a'], ['b']])}",
        "the script's answer: label has the shape [2, 1], and has to have [batch, 1], for a request of 1 row",
    ),
    "another rank": (
        "return {'label': np.array(['a'])}",
        "the script's answer: label has the shape [1], and has to have [batch, 1], for a request of 1 row",
    ),
    "another size": (
        "return {'label': np.array([['a', 'b']])}",
        "the script's answer: label has the shape [1, 2], and has to have [batch, 1], for a request of 1 row",
    ),
}


@pytest.mark.parametrize(("line", "words"), FAILING.values(), ids=FAILING.keys())
def test_script_failure_refuses_request(
    line: str, words: str, tmp_path: Path, recording_models: RecordingModels
) -> None:
    """What goes wrong in a script refuses the request in one line."""
    with pytest.raises(Refused) as refused:
        run(tmp_path, f"import numpy as np\n\ndef answer(inputs, models):\n    {line}\n", recording_models, "short")
    assert str(refused.value) == words
    assert (refused.value.__cause__ is not None) == words.startswith("the script failed")


def test_script_refusal_no_failure(tmp_path: Path, recording_models: RecordingModels) -> None:
    """A script refuses in its own words, and that is no failure."""
    script = """
from plansmith_served.scripting import Refused

def answer(inputs, models):
    raise Refused("nobody is to ask this")
"""
    with pytest.raises(Refused, match=r"^nobody is to ask this$") as refused:
        run(tmp_path, script, recording_models, "short")
    assert refused.value.__cause__ is None


def test_model_refusal_can_be_caught(tmp_path: Path, recording_models: RecordingModels) -> None:
    """A model that refuses refuses the request unless the script catches it."""
    with pytest.raises(Refused, match=r"^a text is too long$"):
        run(tmp_path, ROUTE, recording_models, "x" * 100)
    script = """
from plansmith_served.scripting import Refused

def answer(inputs, models):
    try:
        return models["main"](text=inputs["text"])
    except Refused as refused:
        return models["main"](text=inputs["text"].astype("S99"))
"""
    assert run(tmp_path, script, recording_models, "x" * 100)["score"].tolist() == [[np.float32(9.9)]]


def test_script_answer_may_hold_extras(tmp_path: Path, recording_models: RecordingModels) -> None:
    """An answer may hold more than is promised, in any order."""
    script = """
import numpy as np

def answer(inputs, models):
    wide = np.arange(6, dtype=">f4").reshape(3, 2)
    return {"more": None, "score": wide.T}
"""
    outputs = [{"name": "score", "dtype": "float32", "dims": ["batch", "length"]}]
    answer = run(tmp_path, script, recording_models, "a", "b", outputs=outputs)
    assert answer.keys() == {"score"}
    assert (answer["score"].dtype, answer["score"].flags.c_contiguous) == (np.dtype("float32"), True)
    assert answer["score"].tolist() == [[0, 2, 4], [1, 3, 5]]


BAD = {
    "a syntax error": ("def answer(:", "script.py cannot be imported: SyntaxError: .*line 1"),
    "a module that is missing": (
        "import numpy\nimport nowhere",
        r"script.py cannot be imported: ModuleNotFoundError: No module named 'nowhere' \(line 2\)",
    ),
    "an exit": ("import sys\n\nsys.exit('no')", r"script.py cannot be imported: SystemExit: no \(line 3\)"),
    "no function": ("def reply(inputs, models): ...", r"script.py has no function answer\(inputs, models\)"),
    "one argument": ("def answer(inputs): ...", "answer cannot be called as .*: too many positional arguments"),
    "three arguments": ("def answer(a, b, c): ...", "answer cannot be called as .*: missing a required argument: 'c'"),
    "async": ("async def answer(inputs, models): ...", "cannot be async or a generator"),
    "a generator": ("def answer(inputs, models):\n    yield 1", "cannot be async or a generator"),
}


@pytest.mark.parametrize(("script", "words"), BAD.values(), ids=BAD.keys())
def test_unusable_script_told_at_load(script: str, words: str, tmp_path: Path) -> None:
    """A script that cannot be used is told when it is loaded."""
    (tmp_path / "script.py").write_text(script)
    with pytest.raises(BadScript, match=words):
        load_script(tmp_path / "script.py")


def test_script_dataclasses_leave_nothing(tmp_path: Path, recording_models: RecordingModels) -> None:
    """A script may have dataclasses and leaves nothing behind."""
    script = """
from __future__ import annotations
import dataclasses
import numpy as np

@dataclasses.dataclass
class Route:
    score: float

def answer(inputs, models):
    return {"score": np.full((len(inputs["text"]), 1), Route(0.25).score, np.float32)}
"""
    assert run(tmp_path, script, recording_models, "a", "b", outputs=OUTPUTS[1:])["score"].tolist() == [[0.25], [0.25]]
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_triton_copy_needs_no_plansmith(tmp_path: Path) -> None:
    """What is copied for Triton needs nothing of plansmith."""
    write_model_files(
        tmp_path, script_text(), modules=("requests", "chains", "scripting"), settings={}, requirements={"numpy": "1"}
    )
    (tmp_path / "script.py").write_text("from plansmith_served.scripting import Refused\ndef answer(a, b): ...\n")
    code = """
import sys
import model
from pathlib import Path
from plansmith_served import scripting
module = scripting.load_script(Path("script.py"))
assert module.Refused is scripting.Refused
assert issubclass(model.TritonPythonModel, scripting.ScriptModel)
assert not [name for name in sys.modules if name.partition(".")[0] in ("plansmith", "pydantic", "torch")]
"""
    subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path, check=True, env={})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("model.py", "plansmith_served", "requirements.txt", "script.py", "settings.json")
    ]
