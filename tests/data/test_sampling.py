"""Real data become stored cases: inputs, FP32 answers and labels of two sets that share no sample."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import CLIPImageProcessor

from plansmith.config.data import DataSpec
from plansmith.config.spec import make_spec
from plansmith.data.reference import StoredCase, StoredCases
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import DataSet, SampleSet
from plansmith.sources.dataset import find_data
from plansmith.steps.worker import sampling, tasks
from plansmith.steps.worker.sample_request import EntryPointRequest, SampleRequest
from plansmith.system.digest import Digester
from plansmith.system.process import Worker

from ..support.models import graphs
from ..support.models.encoders import phrases, save_bert, save_timm, save_vit
from .test_readers import save_image

SENTENCES = (files("plansmith") / "samples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
SHORT = {"batch": {"min": 1, "opt": 4, "max": 8}, "sequence": {"min": 4, "opt": 8, "max": 48}}


def request_of(source: str, folder: Path, out: Path, data: DataSpec | None, **options: Any) -> SampleRequest:
    out.mkdir()
    scheme, _, location = source.partition(":")
    place = find_data(data, relative_to=folder, digester=Digester(folder / "memo.sqlite")) if data else None
    own = {key: options.pop(key) for key in ("axes", "tied") if key in options}
    model = {"scheme": scheme, "location": location, "folder": location, **options}
    return SampleRequest.model_validate(
        {"model": model, "data": data, "place": place, "out": out, "axes": SHORT, **own}
    )


def sampled(source: str, folder: Path, out: Path, data: DataSpec | None, **options: Any) -> DataSet:
    return sampling.sample(request_of(source, folder, out, data, **options), lambda _: None)


def stored(samples: SampleSet | None, out: Path) -> list[StoredCase]:
    assert samples is not None
    return list(StoredCases(samples.cases, out))


def save_rows(path: Path, rows: list[dict[str, Any]]) -> DataSpec:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataSpec(path=path.name, calibration=12, evaluation=16)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker("plansmith.steps.worker", tmp_path_factory.mktemp("worker") / "log") as started:
        yield started


@pytest.mark.slow
def test_minilm_gets_sentences(worker: Worker, minilm_folder: Path, tmp_path: Path) -> None:
    """MiniLM gets sentences through the real worker."""
    (tmp_path / "a.txt").write_text("\n".join([*SENTENCES, *SENTENCES[:9]]))
    data = DataSpec(path="a.txt", calibration=12, evaluation=20)
    data_set = tasks.SAMPLE.run(worker, request_of(f"hf:{minilm_folder}", tmp_path, tmp_path / "out", data))
    assert (data_set.metric, data_set.pooling, data_set.real, data_set.available) == (
        "neighbours",
        "none",
        True,
        len(SENTENCES),
    )
    assert "a.txt" in data_set.words
    calibration, evaluation = data_set.calibration, data_set.evaluation
    assert evaluation is not None
    assert len(evaluation.rows) == len(set(evaluation.rows)) == 20
    assert not set(calibration.digests) & set(evaluation.digests)
    assert len({c.axes["batch"] for c in calibration.cases}) > 1
    assert (calibration.cases[-1].axes, calibration.cases[-1].name) == ({"batch": 4, "sequence": 48}, "joined")
    assert (calibration.joined, calibration.count, data_set.words) == (4, 16, "a.txt (text)")
    case = stored(evaluation, tmp_path / "out")[0]
    assert case.answer["last_hidden_state"].shape == (*case.feed["input_ids"].shape, 384)
    assert case.answer["sentence_embedding"].shape == (len(case.feed["input_ids"]), 384)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder)
    for ids, row in zip(case.feed["input_ids"], evaluation.rows, strict=False):
        text = tokenizer(SENTENCES[row], truncation=True, max_length=48)["input_ids"]
        assert ids[: len(text)].tolist() == text


@pytest.mark.slow
def test_minilm_reads_scored_pairs(worker: Worker, minilm_folder: Path, tmp_path: Path) -> None:
    """MiniLM reads pairs text by text, with their scores."""
    pairs = enumerate(pairwise(SENTENCES))
    rows = [{"sentence1": first, "sentence2": second, "score": i / 7} for i, (first, second) in pairs]
    data = save_rows(tmp_path / "a.jsonl", rows)
    data_set = tasks.SAMPLE.run(worker, request_of(f"hf:{minilm_folder}", tmp_path, tmp_path / "out", data))
    assert (data_set.metric, data_set.pooling) == ("spearman", "none")
    assert data_set.evaluation is not None
    assert data_set.evaluation.labelled
    assert data_set.evaluation.rows[::2] == data_set.evaluation.rows[1::2]
    assert data_set.evaluation.count == 32
    scores = np.concatenate([c.labels["score"] for c in stored(data_set.evaluation, tmp_path / "out")])
    np.testing.assert_allclose(scores[::2], [row / 7 for row in data_set.evaluation.rows[::2]])
    assert np.isnan(scores[1::2]).all()


@pytest.mark.slow
def test_data_error_crosses_worker(worker: Worker, minilm_folder: Path, tmp_path: Path) -> None:
    """An error of the data crosses the worker and says what to write."""
    (tmp_path / "a.csv").write_text("blurb,stars\ngood,5\n")
    with pytest.raises(UsageError, match="it has blurb, stars") as caught:
        tasks.SAMPLE.run(worker, request_of(f"hf:{minilm_folder}", tmp_path, tmp_path / "out", DataSpec(path="a.csv")))
    assert "columns: {text: blurb}" in caught.value.remedy


@pytest.mark.slow
def test_own_function_runs_in_worker(worker: Worker, minilm_folder: Path, tmp_path: Path) -> None:
    """A function of one's own runs in the worker only."""
    (tmp_path / "mine.py").write_text(f"def texts():\n    return [{{'text': t}} for t in {SENTENCES!r}]\n")
    data = DataSpec(entry_point="mine:texts", calibration=4, evaluation=8)
    request = request_of(f"hf:{minilm_folder}", tmp_path, tmp_path / "out", data)
    assert request.place is not None
    function = EntryPointRequest(entry_point="mine:texts", place=request.place)
    digest = tasks.ENTRY_POINT_DIGEST.run(worker, function).digest
    data_set = tasks.SAMPLE.run(worker, request)
    assert len(digest) == len(data_set.digest) == 64
    assert data_set.available == len(SENTENCES)


def test_own_inputs_calibrate_without_data(tmp_path: Path) -> None:
    """Without data, plansmith's own inputs calibrate and nothing is held out."""
    folder = save_bert(tmp_path / "model", "Model")
    data_set = sampled(f"hf:{folder}", tmp_path, tmp_path / "out", None)
    assert (data_set.real, data_set.guessed, data_set.evaluation, data_set.metric) == (False, False, None, "none")
    assert data_set.words == "plansmith's sample sentences, as no data were given"
    assert data_set.calibration.cases[-1].axes == {"batch": 4, "sequence": 48}
    assert sum(len(c.rows) for c in stored(data_set.calibration, tmp_path / "out")) == data_set.calibration.count


def test_class_names_stored_as_ids(tmp_path: Path) -> None:
    """Names of classes are stored as the model's IDs."""
    folder = save_bert(tmp_path / "model", "ForSequenceClassification", labels={0: "no", 1: "maybe", 2: "yes"})
    rows = [{"text": text, "label": ("yes", "no")[i % 2]} for i, text in enumerate(phrases(40))]
    data_set = sampled(f"hf:{folder}", tmp_path, tmp_path / "out", save_rows(tmp_path / "a.jsonl", rows))
    assert (data_set.metric, data_set.pooling) == ("accuracy", "none")
    assert data_set.evaluation is not None
    labels = np.concatenate([c.labels["class"] for c in stored(data_set.evaluation, tmp_path / "out")])
    assert labels.tolist() == [2 if row % 2 == 0 else 0 for row in data_set.evaluation.rows]
    assert 7 <= labels.tolist().count(2) <= 9


def test_labels_stored_at_tokens(tmp_path: Path) -> None:
    """Tags and answers are stored at their tokens."""
    tagger = save_bert(tmp_path / "tagger", "ForTokenClassification", labels={0: "O", 1: "CAT"})
    sentences = [text.split() for text in dict.fromkeys(phrases(60))]
    rows = [{"tokens": w, "ner_tags": ["CAT" if x == "cat" else "O" for x in w]} for w in sentences]
    data_set = sampled(f"hf:{tagger}", tmp_path, tmp_path / "tags", save_rows(tmp_path / "a.jsonl", rows))
    assert data_set.metric == "token-f1"
    for case in stored(data_set.evaluation, tmp_path / "tags"):
        np.testing.assert_array_equal(case.labels["tags"] == 1, case.feed["input_ids"] == 6)
        assert case.answer["logits"].shape == (*case.labels["tags"].shape, 2)
    reader = save_bert(tmp_path / "reader", "ForQuestionAnswering")
    questions: list[dict[str, Any]] = [
        {"question": "who ?", "context": f"{text} dog", "answers": {"text": ["dog"], "answer_start": [len(text) + 1]}}
        for text in dict.fromkeys(phrases(60))
    ]
    data_set = sampled(f"hf:{reader}", tmp_path, tmp_path / "answers", save_rows(tmp_path / "b.jsonl", questions))
    assert data_set.metric == "answer-f1"
    for case in stored(data_set.evaluation, tmp_path / "answers"):
        at = np.arange(len(case.labels["start"]))
        assert (case.feed["input_ids"][at, case.labels["start"]] == 11).all()
        np.testing.assert_array_equal(case.labels["start"], case.labels["end"])


def test_image_folders_are_timm_classes(tmp_path: Path) -> None:
    """Folders of images are classes of a timm model."""
    folder = save_timm(tmp_path / "model", classes=("dog", "cat"))
    for i in range(40):
        save_image(tmp_path / "images" / ("cat" if i % 2 else "dog") / f"{i:02}.png", 5 * i)
    data = DataSpec(path="images", calibration=10, evaluation=20)
    data_set = sampled(f"timm:{folder}", tmp_path, tmp_path / "out", data, axes={})
    assert data_set.metric == "accuracy"
    cases = stored(data_set.evaluation, tmp_path / "out")
    brightness = np.concatenate([c.feed["pixel_values"][:, 0, 0, 0] for c in cases])
    grey = np.round((brightness * 0.5 + 0.5) * 255 / 5).astype(int)
    assert np.concatenate([c.labels["class"] for c in cases]).tolist() == (grey % 2).tolist()


def test_uneven_images_refused(tmp_path: Path) -> None:
    """Images of two sides are refused where the exported graph has one axis for both."""
    folder = save_vit(tmp_path / "model")
    CLIPImageProcessor(size={"shortest_edge": 16}, do_center_crop=False).save_pretrained(folder)
    (tmp_path / "images").mkdir()
    for i in range(40):
        Image.new("RGB", (22, 16), (5 * i, i, i)).save(tmp_path / "images" / f"{i:02}.png")
    data = DataSpec(path="images", calibration=12, evaluation=16)
    side = {"min": 16, "opt": 16, "max": 64}
    with pytest.raises(SourceError, match=r"png becomes \[3, 16, 22\], and the model takes \[3, height, height\]"):
        sampled(f"hf:{folder}", tmp_path, tmp_path / "out", data, axes={"height": side}, tied={"width": "height"})


def test_arrays_reach_fixed_batch(tmp_path: Path) -> None:
    """Arrays reach an ONNX file whose batch is fixed."""
    weight = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    text = "net (float[4, 6] x) => (float[4, 3] y) { y = MatMul (x, weight) }"
    path = graphs.save(text, tmp_path, weight=weight)
    x = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, label=np.argmax(x @ weight, axis=1))
    data = DataSpec(path="a.npz", calibration=8, evaluation=22)
    data_set = sampled(f"onnx:{path}", tmp_path, tmp_path / "out", data, axes={})
    assert data_set.metric == "accuracy"
    assert data_set.evaluation is not None
    assert data_set.evaluation.count == 20
    answers = [c.answer["y"] for c in stored(data_set.evaluation, tmp_path / "out")]
    expected = x[list(data_set.evaluation.rows)] @ weight
    assert np.allclose(np.concatenate(answers), expected, rtol=1e-5)
    labels = np.concatenate([c.labels["class"] for c in stored(data_set.evaluation, tmp_path / "out")])
    assert labels.tolist() == np.concatenate(answers).argmax(axis=1).tolist()


def test_refused_values_blame_data(tmp_path: Path) -> None:
    """Values that the graph refuses are the fault of the data."""
    table = np.zeros((5, 3), np.float32)
    text = "net (int64[batch] x) => (float[batch, 3] y) { y = Gather (table, x) }"
    path = graphs.save(text, tmp_path, table=table)
    np.savez(tmp_path / "a.npz", x=np.arange(20))
    data = DataSpec(path="a.npz", calibration=8, evaluation=8)
    with pytest.raises(UsageError, match=r"does not take these values \(x \[\d+\]\)"):
        sampled(f"onnx:{path}", tmp_path, tmp_path / "out", data, axes={})


def test_disk_filling_answers_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that would fill the disk are refused at the first batch."""
    folder = save_bert(tmp_path / "model", "Model")
    data = save_rows(tmp_path / "a.jsonl", [{"text": text} for text in phrases(40)])
    monkeypatch.setattr(sampling, "_MOST_BYTES", 10_000)
    with pytest.raises(UsageError, match="answers to 12 samples for calibration would take") as caught:
        sampled(f"hf:{folder}", tmp_path, tmp_path / "out", data)
    assert "`outputs`" in caught.value.remedy
    assert len(list((tmp_path / "out" / "calibration").iterdir())) == 1


def test_unmeasurable_data_refused_early(tmp_path: Path) -> None:
    """What cannot be measured is refused before the model is asked."""
    folder = save_bert(tmp_path / "model", "Model")
    data = save_rows(tmp_path / "a.jsonl", [{"text": text} for text in phrases(40)])
    few = data.model_copy(update={"evaluation": 2})
    with pytest.raises(
        UsageError, match="neighbours needs 3 samples or more for evaluation, and there are 2"
    ) as caught:
        sampled(f"hf:{folder}", tmp_path, tmp_path / "few", few)
    assert "metric: none" in caught.value.remedy
    alike = [{"sentence1": first, "sentence2": second, "score": 0.5} for first, second in pairwise(phrases(40))]
    with pytest.raises(UsageError, match=r"compares orders, and all 16 samples for evaluation have the score 0\.5"):
        sampled(f"hf:{folder}", tmp_path, tmp_path / "alike", save_rows(tmp_path / "b.jsonl", alike))
    assert not [*(tmp_path / "few").iterdir(), *(tmp_path / "alike").iterdir()]


def test_unused_labels_are_said(tmp_path: Path) -> None:
    """Labels that no output can be held against are said to be unused."""
    folder = save_bert(tmp_path / "model", "Model")
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(phrases(40))]
    data_set = sampled(f"hf:{folder}", tmp_path, tmp_path / "out", save_rows(tmp_path / "a.jsonl", rows))
    assert data_set.metric == "neighbours"
    assert data_set.words.endswith("; its labels are not used: no output can be held against them")


def test_unread_labels_may_be_missing(tmp_path: Path) -> None:
    """Labels that no measure reads may be missing."""
    folder = save_bert(tmp_path / "model", "ForSequenceClassification")
    rows = [{"text": text, "label": None if i % 2 else 1} for i, text in enumerate(phrases(40))]
    data = save_rows(tmp_path / "a.jsonl", rows)
    data_set = sampled(f"hf:{folder}", tmp_path, tmp_path / "out", data.model_copy(update={"metric": "none"}))
    assert data_set.evaluation is not None
    assert (data_set.metric, data_set.evaluation.labelled) == ("none", False)
    with pytest.raises(SourceError, match="has no value for the label"):
        sampled(f"hf:{folder}", tmp_path, tmp_path / "again", data)


def test_spec_with_data_is_read() -> None:
    """A spec with data is read and refused like the rest of it."""
    spec = make_spec({"source": "hf:bert", "data": {"path": "a.csv", "columns": {"text": "body"}, "seed": 3}})
    assert spec.data is not None
    assert (spec.data.calibration, spec.data.evaluation, spec.data.metric) == (128, 256, "auto")
    with pytest.raises(UsageError, match="give one of path, dataset and entry_point, not path and dataset"):
        make_spec({"source": "hf:bert", "data": {"path": "a.csv", "dataset": "b"}})
