"""Data that cannot be used are refused with one message, at the step that reads them, and nothing is made."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from plansmith.data.batches import Draw, draw

from ..support.cli.command import Answer, check_nothing_made, check_refusal
from ..support.cli.in_process import InProcess
from ..support.models.encoders import phrases, save_bert, save_timm
from ..support.precision import lint_graphs

TEXTS = phrases(60)
LONG = "\n".join(" ".join([text] * 80) for text in TEXTS[:20])
LINES = "\n".join(TEXTS[:20]) + "\n"
SOME = {"calibration": 8, "evaluation": 8}
_NOISE = np.random.default_rng(0)
_IMAGES = _NOISE.normal(size=(20, 3, 12, 12)).astype(np.float32)
_IDS = _NOISE.integers(0, lint_graphs.WORDS, (20, 8))
_PIXELS = (99 * np.abs(_IMAGES)).astype(np.uint8)
_ONES = np.ones((20, 8), np.int64)

Arrays = dict[str, NDArray[Any]]
Content = str | bytes | Arrays | None
"""Text, bytes, arrays for an npz, or None for a small image."""


@dataclass(frozen=True)
class DataCase:
    """Data for a model.

    Args:
        model: of `models`.
        files: what lies beside the spec.
        data: under `data` in the spec; 8 and 8 samples where it does not say.
        status: the exit code.
        says: what the message must hold.
        spec: the rest of the spec.
    """

    model: str
    files: dict[str, Content]
    data: dict[str, Any]
    status: int = 0
    says: tuple[str, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)

    def lay_out(self, folder: Path, models: Path) -> Path:
        """Write the files and the spec."""
        for name, content in self.files.items():
            _write(folder / name, content)
        scheme = {"bert": "hf:", "timm": "timm:"}.get(self.model, "onnx:")
        suffix = ".onnx" if scheme == "onnx:" else ""
        defaults = {"source": f"{scheme}{models / self.model}{suffix}", "name": "m", "precision": "int8"}
        path = folder / "spec.yaml"
        path.write_text(json.dumps({**defaults, "data": {**SOME, **self.data}, **self.spec}))
        return path


def _write(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        np.savez(path, **content)  # type: ignore[arg-type]
    elif content is None:
        noise = np.random.default_rng(list(f"{path.parent.name}/{path.name}".encode()))  # another in each file
        Image.fromarray(noise.integers(0, 255, (32, 32), dtype=np.uint8)).save(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def _csv(label: Callable[[int], object]) -> str:
    return "text,label\n" + "".join(f"{text},{label(i)}\n" for i, text in enumerate(TEXTS[:20]))


def _text(content: Content, status: int, *says: str, **data: Any) -> DataCase:
    return DataCase("bert", {"a.txt": content}, {"path": "a.txt", **data}, status, says)


def _rows(content: str, status: int, *says: str, name: str = "a.csv", **data: Any) -> DataCase:
    return DataCase("bert", {name: content}, {"path": name, **data}, status, says)


def _arrays(model: str, status: int, *says: str, **arrays: NDArray[Any]) -> DataCase:
    return DataCase(model, {"a.npz": arrays}, {"path": "a.npz"}, status, says)


def _own(code: str, status: int, *says: str) -> DataCase:
    return DataCase("bert", {"own.py": f"def samples():\n    {code}\n"}, {"entry_point": "own:samples"}, status, says)


WRONG = {
    "an empty file": _text("", 3, "a.txt holds no samples"),
    "blank lines": _text("\n \n\n", 3, "a.txt holds no samples"),
    "one line": _text("the cat\n", 2, "1 different sample,", "give samples that differ"),
    "more than there are": _text(LINES, 2, "16 for evaluation", "give more samples", calibration=16, evaluation=16),
    "lines that repeat others": _text(LINES * 9, 2, "180 rows, of which 162 repeat", calibration=8, evaluation=16),
    "Latin-1": _text(LINES.encode() + b"caf\xe9\n", 3, "a.txt:21 is not UTF-8", "iconv -f latin1"),
    "a file that is not there": DataCase("bert", {}, {"path": "a.txt"}, 3, ("there is no file or folder", "`path`")),
    "a format that nobody knows": _rows("x", 2, "cannot tell what a.doc is", ".jsonl", name="a.doc"),
    "columns of other names": _rows("blurb,stars\ngood,1\n", 2, "it has blurb, stars", "columns: {text: blurb}"),
    "a column that is not there": _rows(_csv(int), 2, "no column 'body'", "text, label", columns={"text": "body"}),
    "a header alone": _rows("text,label\n", 3, "a.csv holds no samples"),
    "a field too many": _rows("text,label\na,1,2\n", 3, "a.csv:2 has 3 fields", "put quotes"),
    "no JSON": _rows("{\n", 3, "a.jsonl:1 is not JSON", name="a.jsonl"),
    "no Parquet": _rows("PAR1", 3, "a.parquet cannot be read", "again", name="a.parquet"),
    "labels out of range": _rows(_csv(lambda i: 7 if i == 3 else i % 2), 2, "label '7' in row 3", "(0 to 1)"),
    "labels of other names": _rows(_csv(lambda i: ["calm", "wild"][i % 2]), 2, "label 'wild'", "(calm, angry)"),
    "a label that is missing": _rows(
        "".join(json.dumps({"text": t, "label": 1 if i else None}) + "\n" for i, t in enumerate(TEXTS[:20])),
        3,
        "a.jsonl:1 has no value for the label",
        "metric: none",
        name="a.jsonl",
    ),
    "a measure without labels": _text(LINES, 2, "spearman needs pairs", "leave `metric` out", metric="spearman"),
    "images for a model of texts": DataCase(
        "bert", {"images/a.png": None}, {"path": "images"}, 3, ("takes text, and these are images",)
    ),
    "a function that yields nothing": _own("yield from ()", 3, "own:samples yields no samples"),
    "a function that fails": _own("yield {'text': str(1 / 0)}", 3, "ZeroDivisionError", "own.py:2", "run it by hand"),
    "a function that repeats itself": _own(
        "for _ in range(99): yield {'text': 'the cat'}", 2, "99 rows, of which 98 repeat others"
    ),
    "no folder of images": DataCase("timm", {"images/readme": "x"}, {"path": "images"}, 3, ("holds no images",)),
    "a broken image": DataCase(
        "timm",
        {"images/a.png": "x" * 50},
        {"path": "images", "calibration": 1, "evaluation": 0},
        3,
        ("a.png is no image that can be read", "take it out"),
    ),
    "images of other classes": DataCase(
        "timm",
        {f"images/{c}/{i}.png": None for c in ("zero", "dog") for i in range(8)},
        {"path": "images"},
        2,
        ("label 'dog' is none of", "(zero, one, two)"),
    ),
    "texts for a model of images": DataCase(
        "timm", {"a.txt": LINES}, {"path": "a.txt"}, 3, ("a.txt:1: there is no image",)
    ),
    "texts for a graph": DataCase("attention", {"a.txt": LINES}, {"path": "a.txt"}, 2, ("'text' holds no numbers",)),
    "no npz": DataCase("cnn", {"a.npz": "x"}, {"path": "a.npz"}, 3, ("a.npz is no .npz file", "numpy.savez")),
    "objects": _arrays("cnn", 3, "Object arrays", image=np.array([{}] * 20, object)),
    "arrays of other lengths": _arrays("attention", 3, "ids [20, 8], mask [19, 8]", ids=_IDS, mask=_ONES[:-1]),
    "floats for ids": _arrays("attention", 2, "ids is float64 [8]", "int64", ids=_IDS + 0.5, mask=_ONES),
    "words for ids": _arrays("attention", 2, "'ids' holds no numbers", ids=_IDS.astype(str), mask=_ONES),
    "another rank": _arrays("attention", 2, "ids is int64 [8, 1]", ids=_IDS[..., None], mask=_ONES),
    "another size": _arrays("cnn", 2, "float32 [3, 10, 10]", "takes [3, 12, 12]", image=_IMAGES[..., :10, :10]),
    "channels at the end": _arrays("cnn", 2, "takes [3, 12, 12]", image=np.moveaxis(_IMAGES, 1, -1)),
    "an input that is missing": _arrays(
        "attention", 2, "input ids: it has mask, other", "columns: {ids: other}", mask=_ONES, other=_IDS
    ),
    "values that the model refuses": _arrays(
        "attention", 2, "does not take these values", "size of its vocabulary", ids=_IDS + 100, mask=_ONES
    ),
    "sequences beyond the range": DataCase(
        "attention",
        {"a.npz": {"ids": _IDS, "mask": _ONES}},
        {"path": "a.npz"},
        2,
        ("ids", "length"),
        {"shapes": {"ids": "1x4:4x4:8x6", "mask": "1x4:4x4:8x6"}},
    ),
    "NaN": _arrays("cnn", 2, "image holds 1 NaN", image=np.where(np.arange(432).reshape(3, 12, 12), _IMAGES, np.nan)),
    "fewer than the smallest batch": DataCase(
        "cnn",
        {"a.npz": {"image": _IMAGES}},
        {"path": "a.npz", "calibration": 2},
        2,
        ("the smallest batch holds 4 samples, and 2 are for calibration", "set calibration: 4"),
        {"shapes": {"image": "4x3x12x12:8x3x12x12:16x3x12x12"}},
    ),
}

USABLE = {
    "one sample and no others": _text("the cat\n", 0, "judged on plansmith's own samples", calibration=1, evaluation=0),
    "none held out": _text(LINES, 0, "int8 was judged on plansmith's own samples alone", evaluation=0),
    "texts beyond the longest sequence": _text(LONG, 0, "int8 was judged on plansmith's own", evaluation=0),
    "data of a graph with batches of one": _arrays("fixed", 0, "8 held-out samples", image=_IMAGES),
    "pixels where the graph takes floats": _arrays("cnn", 0, "8 held-out samples", image=_PIXELS),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and three graphs; `artifacts` beside them is for all tests."""
    import torch

    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models")
    save_bert(folder / "bert", "ForSequenceClassification", labels={0: "calm", 1: "angry"})
    save_timm(folder / "timm", classes=("zero", "one", "two"))
    onnx.save(lint_graphs.attention(), folder / "attention.onnx")
    onnx.save(lint_graphs.cnn(), folder / "cnn.onnx")
    fixed = lint_graphs.cnn()
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(fixed, folder / "fixed.onnx")
    return folder


@pytest.fixture
def lower(run: InProcess, models: Path) -> Callable[[DataCase], Answer]:
    """Lower the model of some data."""

    def lower(case: DataCase) -> Answer:
        sys.modules.pop("own", None)
        spec = case.lay_out(run.folder, models)
        return run("lower", spec, "--output", "out", "--artifacts", models / "artifacts", "--json")

    return lower


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_unusable_data_refused(case: DataCase, lower: Callable[[DataCase], Answer], run: InProcess) -> None:
    """Data that cannot be used are refused."""
    check_refusal(lower(case), case.status, ("m · sample: ", *case.says))
    check_nothing_made(run.folder)
    assert not (run.folder / "out").exists()


@pytest.mark.parametrize("case", USABLE.values(), ids=USABLE.keys())
def test_odd_data_accepted(case: DataCase, run: InProcess, models: Path) -> None:
    """Data that look odd but can be used are used."""
    answer = run("lower", case.lay_out(run.folder, models), "--output", "out", "--artifacts", models / "artifacts")
    assert answer.status == 0, answer
    assert not [fragment for fragment in case.says if fragment not in answer.stdout], answer.stdout


def test_spec_data_start_from_folder(run: InProcess, models: Path) -> None:
    """Data of a spec in another folder start from that folder."""
    (run.folder / "there").mkdir()
    _text(LINES + "a line of its own\n", 0).lay_out(run.folder / "there", models)
    command = ("lower", "there/spec.yaml", "--artifacts", models / "artifacts", "--json", "--output")
    assert run(*command, "out").status == 0
    (run.folder / "there" / "a.txt").unlink()
    missing = f"m · sample: data: there is no file or folder {run.folder / 'there' / 'a.txt'}"
    check_refusal(run(*command, "again"), 3, (missing, "mend --data"))


def test_missing_parquet_library_is_said(lower: Callable[[DataCase], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet without its library is something missing here."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = lower(_rows("PAR1", 9, name="a.parquet"))
    check_refusal(answer, 9, ("m · sample: ", "pyarrow is not installed", "pip install 'plansmith[data]'"))


def test_changing_data_refused(
    lower: Callable[[DataCase], Answer], run: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that change while they are read are refused."""

    def draw_late(*arguments: Any) -> Draw:
        path = run.folder / "a.txt"
        path.write_text(path.read_text() + "one more\n")
        os.utime(path, (1, 1))
        return draw(*arguments)

    monkeypatch.setattr("plansmith.steps.worker.sampling.draw", draw_late)
    check_refusal(lower(_text(LINES, 3)), 3, ("m · sample: a.txt changed while they were read", "run again"))
