"""Several models in one release, and a script that asks them: by the real command and Triton, beside transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from numpy.typing import NDArray

from plansmith.errors import ServedCheckError
from plansmith.triton.client import Client

from ..support.cli.command import check_refusal
from ..support.cli.commands import compile_model, run, serve
from ..support.cli.in_process import InProcess
from ..support.pipelines.classifiers import Classifier, as_requests, classifier, close_ranks, save_classifiers
from ..support.pipelines.columns import column
from ..support.real_sentences import real_sentences

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end-to-end")]

Answers = list[Mapping[str, NDArray[Any]]]

LARGEST, TOP_K = 4, 2
EXACT, ROUNDED = 1e-4, 1e-2
"""How far scores may be off in FP32 and in FP16."""

AT_ONCE = 4
ODD = ["", "🙂 naïve — 東京", "word " * 400]
SHAPES = {"input_ids": "1x1:4x32:8x128"}
TOPICS = {
    "source": "hf:./topics",
    "precision": "fp16",
    "shapes": {"input_ids": f"1x1:2x32:{LARGEST}x128"},
    "pipeline": {"top_k": TOP_K},
}
READER = {
    "source": "hf:./mood",
    "name": "reader",
    "artifacts": "artifacts",
    "shapes": SHAPES,
    "pipeline": {"models": {"topics": TOPICS}},
}
ROUTER = READER | {"name": "router", "pipeline": {"script": "route.py", "models": {"topics": TOPICS}}}
ROUTE = '''
"""Says what a text is about where its mood is clear, and the mood elsewhere."""

import numpy as np
from plansmith_served.scripting import Refused

OUTPUTS = {"label": ("string", ["batch", 1]), "score": ("float32", ["batch", 1]), "asked": ("int64", ["batch", 1])}


def answer(inputs, models):
    if any(len(text) == 0 for text in inputs["text"].flat):
        raise Refused("no text is empty")
    mood = models["main"](text=inputs["text"])
    clear = mood["score"][:, :1] > 0.4
    label, score = mood["label"][:, :1].copy(), mood["score"][:, :1].copy()
    if clear.any():
        topic = models["topics"](text=inputs["text"])
        label[clear], score[clear] = topic["label"][:, :1][clear], topic["score"][:, :1][clear]
    return {"label": label, "score": score, "asked": np.where(clear, 2, 1).astype(np.int64)}
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and specs of a release of both, once with a script."""
    folder = tmp_path_factory.mktemp("beside")
    save_classifiers(folder)
    (folder / "reader.yaml").write_text(yaml.safe_dump(READER))
    (folder / "router.yaml").write_text(yaml.safe_dump(ROUTER))
    (folder / "route.py").write_text(ROUTE)
    return folder


@pytest.fixture(scope="module")
def reader(folder: Path) -> dict[str, Any]:
    """Both models in one release, the second one in FP16."""
    return compile_model(folder / "artifacts", str(folder / "reader.yaml"))


@pytest.fixture(scope="module")
def router(folder: Path, reader: dict[str, Any]) -> dict[str, Any]:
    """The same models, which a script asks; most steps are in the cache."""
    del reader
    return compile_model(folder / "artifacts", str(folder / "router.yaml"))


@pytest.fixture(scope="module")
def mood(folder: Path) -> Classifier:
    return classifier(folder / "mood", top_k=3)


@pytest.fixture(scope="module")
def topics(folder: Path) -> Classifier:
    return classifier(folder / "topics", top_k=TOP_K)


@pytest.fixture
def plansmith(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(folder, monkeypatch, capfd)


def planned(folder: Path, name: str) -> Any:
    """What a fleet's plan says of a model."""
    document = json.loads(run("fleet", "plan", str(folder / f"{name}.yaml"), "--json"))
    (model,) = document["models"]
    return model


def asked_at_once(url: str, grpc: str, model: str, requests: list[NDArray[Any]]) -> Answers:
    """The answers to requests of several clients, half of them over each protocol."""

    def ask(place: int) -> Mapping[str, NDArray[Any]]:
        at, protocol = ((url, "http"), (grpc, "grpc"))[place % 2]
        with Client(at, model=model, protocol=protocol) as client:  # type: ignore[arg-type]
            return client.infer({"text": requests[place]})

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(ask, range(len(requests))))


def texts_of(request: NDArray[Any]) -> list[str]:
    return [text.decode() for text in request[:, 0]]


def test_labels_of_both_models_match(
    reader: dict[str, Any], mood: Classifier, topics: Classifier, tmp_path: Path
) -> None:
    """Real sentences get the labels of both models as Transformers gives them."""
    requests = as_requests([*real_sentences()[:15], *ODD, *real_sentences()[15:30]], LARGEST)
    with serve(reader["repository"], "reader", tmp_path / "said") as (http, grpc):
        answers = asked_at_once(http, grpc, "reader", requests)
        with Client(http, model="reader") as client, pytest.raises(ServedCheckError, match="UTF-8"):
            client.infer({"text": column(b"\xff\xfe")})
    assert {len(request) for request in requests} == {1, 2, 3, LARGEST}
    labels = set()
    for request, answer in zip(requests, answers, strict=True):
        assert set(answer) == {"label", "score", "topics_label", "topics_score"}
        assert answer["topics_label"].shape == (len(request), TOP_K)
        close_ranks(answer, mood.scores(texts_of(request)), EXACT)
        close_ranks(answer, topics.scores(texts_of(request)), ROUNDED, of="topics_")
        labels |= {*answer["label"][:, 0], *answer["topics_label"][:, 0]}
    assert len(labels) > TOP_K + 2, "models that always say the same would show little"


def test_shared_tokenizer_stored_once(reader: dict[str, Any]) -> None:
    """The tokenizer that both models have is stored once."""
    assert list(reader["members"]) == ["text", "model", "labels", "topics-model", "topics-labels"]
    view = Path(reader["repository"])
    assert sorted(entry.name for entry in view.iterdir() if entry.name.startswith("reader.")) == sorted(
        reader["members"].values()
    )
    assert (view / "reader" / "config.pbtxt").read_text().count(reader["members"]["text"]) == 1
    (file,) = (view / "reader").glob("*/pipeline.json")
    assert json.loads(file.read_text())["output"] == {"model": "labels", "topics": "labels"}


def test_descriptions_name_model_beside(reader: dict[str, Any]) -> None:
    """Everything that tells of the release tells of the model beside."""
    (name, beside), *others = reader["beside"].items()
    assert (name, others, beside["precision"], beside["verdict"]) == ("topics", [], "fp16", "passed")
    assert (reader["precision"], reader["verdict"], reader["script"]) == ("fp32", "passed", None)
    assert beside["source"].endswith("/topics")
    assert beside["pipeline"]["outputs"][0]["dims"] == ["batch", TOP_K]
    shown = json.loads(run("inspect", reader["model_path"], "--json"))
    assert list(shown["beside"]) == ["topics"]
    assert shown["beside"]["topics"]["engine"] == "onnxruntime, fp16"
    assert shown["beside"]["topics"]["found"][0] == "text in, labels out: text → model → labels"
    assert [line.partition(":")[0] for line in shown["pipeline"]["outputs"]] == [
        *("label", "score", "topics_label", "topics_score")
    ]
    page = (Path(reader["model_path"]) / "report.html").read_text()
    assert all(fragment in page for fragment in ("topics, beside it", "ONNX Runtime, FP16", "topics_label"))
    reference_folder = Path(reader["model_path"]) / "beside" / "topics" / "reference"
    assert (reference_folder / "opt.npz").is_file()
    assert (reference_folder / "raw" / "mixed.npz").is_file()


def test_release_rebuilt_from_its_spec(reader: dict[str, Any], folder: Path) -> None:
    """The release can be made again from the spec that it holds."""
    spec = yaml.safe_load((Path(reader["model_path"]) / "spec.yaml").read_text())
    assert spec["source"] == f"hf:{folder / 'mood'}"
    assert spec["pipeline"]["models"]["topics"]["source"] == f"hf:{folder / 'topics'}"
    assert spec["pipeline"]["models"]["topics"]["precision"] == "fp16"


def test_second_compile_finds_all_done(reader: dict[str, Any], folder: Path) -> None:
    """A second compile finds all done."""
    again = compile_model(folder / "artifacts", str(folder / "reader.yaml"))
    assert (again["version"], again["unchanged"]) == (reader["version"], True)
    assert [step["name"] for step in again["steps"] if not step["cached"]] == []
    assert "beside topics" in [step["name"] for step in again["steps"]]


def test_repository_check_finds_nothing(reader: dict[str, Any], router: dict[str, Any]) -> None:
    """A check of the repository finds nothing."""
    assert reader["repository"] == router["repository"]
    assert json.loads(run("check", reader["repository"], "--json"))["findings"] == []


@pytest.fixture(scope="module")
def routed(router: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server of the script: its two URLs."""
    with serve(router["repository"], "router", tmp_path_factory.mktemp("served") / "said") as urls:
        yield urls


def test_script_refuses_only_its_request(routed: tuple[str, str]) -> None:
    """A request that the script refuses is told why, and the others are answered."""
    http, _ = routed
    sent = [column(*texts) for texts in (["a cat"], ["a dog", ""], ["two", "rows"], [""])] * 3

    def ask(request: NDArray[Any]) -> int | str:
        with Client(http, model="router") as client:
            try:
                return len(client.infer({"text": request})["label"])
            except ServedCheckError as refused:
                return str(refused.message)

    with ThreadPoolExecutor(len(sent)) as threads:
        answers = list(threads.map(ask, sent))
    for answer, owed in zip(answers, [1, "no text is empty", 2, "no text is empty"] * 3, strict=True):
        assert answer == owed if isinstance(owed, int) else str(answer).endswith(str(owed)), answers


def test_descriptions_name_script(router: dict[str, Any]) -> None:
    """What tells of the release tells of the script."""
    assert [output["name"] for output in router["script"]["outputs"]] == ["label", "score", "asked"]
    assert {"empty", "mixed"} >= {*router["script"]["refused"]} >= {"empty"}
    assert set(router["members"]) == {"text", "model", "labels", "topics-model", "topics-labels"}
    release = Path(router["model_path"])
    assert all((release / case["file"]).is_file() for case in router["script"]["cases"])
    shown = json.loads(run("inspect", str(release), "--json"))
    assert shown["script"][0] == "a script asks them, and answers with label, score, asked"
    assert "it refuses empty" in shown["script"][1]
    assert shown["script"][0] in (release / "report.html").read_text()


CHANCE = """
import os

import numpy as np

OUTPUTS = {"label": ("string", ["batch", 1])}


def answer(inputs, models):
    return {"label": np.array([[os.urandom(8).hex()]] * len(inputs["text"]))}
"""
REFUSED = {
    "it is no Python": ("def answer(:", 2, ("route.py is no Python: invalid syntax",)),
    "it has no answer": ("def reply(inputs, models): ...", 2, ("has no function answer(inputs, models)",)),
    "it raises": (
        "def answer(inputs, models):\n    raise ValueError('the moon is full')\n",
        2,
        ("request 'one-short': the script failed: ValueError: the moon is full", "Next: mend the script"),
    ),
    "it hangs on chance": (
        CHANCE,
        5,
        ("asked twice, the script gives two answers", "Next: look at what it decides by"),
    ),
}


@pytest.mark.parametrize(("text", "status", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_unservable_script_ends_compile(
    text: str, status: int, says: tuple[str, ...], router: dict[str, Any], folder: Path, plansmith: InProcess
) -> None:
    """A script that cannot be served ends the compile with one message."""
    del router
    before = planned(folder, "router")["version"]
    try:
        (folder / "route.py").write_text(text)
        answer = plansmith("compile", "router.yaml", "--artifacts", "artifacts", "--json")
    finally:
        (folder / "route.py").write_text(ROUTE)
    check_refusal(answer, status, says)
    assert answer.document["step"] == "script"
    assert answer.stderr.count("cached") == (0 if "no Python" in says[0] or "no function" in says[0] else 7)
    assert planned(folder, "router")["version"] == before


def test_other_script_makes_other_version(router: dict[str, Any], folder: Path, plansmith: InProcess) -> None:
    """Another script makes another version of the same models."""
    assert planned(folder, "router")["state"] == "fresh"
    (folder / "route.py").write_text(f"{ROUTE}\n# which changes no answer\n")
    (reason,) = planned(folder, "router")["reasons"]
    assert reason["cause"] == "spec"
    assert reason["words"].startswith("spec: pipeline.script route.py ")
    again = plansmith("compile", "router.yaml", "--artifacts", "artifacts", "--no-check-served", "--json").document
    assert (again["version"], again["unchanged"]) == (router["version"] + 1, False)
    assert again["members"] == router["members"]
