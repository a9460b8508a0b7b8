"""The main job on real weights: all-MiniLM-L6-v2 from its directory to answers of a running Triton."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from plansmith.errors import ServedCheckError
from plansmith.triton.client import Client

from ..support import browser
from ..support.cli.command import CommandLine
from ..support.cli.commands import ask
from ..support.cli.documented_sessions import follow
from ..support.documentation import code_blocks, read_page, section
from ..support.pipelines.columns import column
from ..support.real_sentences import real_sentences
from ..support.report.attestations import check_release
from ..support.triton.followed import Followed

SHAPES = "1x1:4x32:8x64"
CALIBRATION, EVALUATION = 32, 128
SENTENCES, AT_ONCE = 64, 4
DESKTOP = (1280, 900)
WRITTEN = ("config.pbtxt", "spec.yaml", "reproduce.sh", "build.log", "reference/max.npz", "model/model.onnx")
"""What explains a release, and the model."""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """One folder for all: what one compile has finished, the others find."""
    return CommandLine(tmp_path_factory.mktemp("minilm"))


@pytest.fixture(scope="module")
def minilm(terminal: CommandLine, minilm_folder: Path) -> dict[str, Any]:
    """The model as its directory has it, in FP32."""
    options = ("--name", "minilm", "--shapes", f"input_ids={SHAPES}")
    return terminal.document("compile", f"hf:{minilm_folder}", *options)


@pytest.fixture(scope="module")
def server(minilm: dict[str, Any]) -> Iterator[Followed]:
    """`plansmith serve --follow`, which takes up what is compiled later."""
    with Followed(Path(minilm["repository"])) as server:
        yield server.wait_for_models("minilm")


@pytest.fixture(scope="module")
def transformer(minilm_folder: Path) -> Any:
    """The model in the library of its authors."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm_folder), device="cpu").eval()
    model.max_seq_length = int(SHAPES.rpartition("x")[2])  # where the pipeline cuts them, too
    return model


@pytest.fixture(scope="module")
def int8_spec(terminal: CommandLine, minilm_folder: Path) -> Path:
    """A spec in INT8, and sentences beside it."""
    (terminal.folder / "sentences.txt").write_text("\n".join(real_sentences()[: CALIBRATION + EVALUATION]))
    spec = {
        "source": f"hf:{minilm_folder}",
        "name": "minilm-int8",
        "precision": "int8",
        "artifacts": "artifacts",
        "shapes": {"input_ids": SHAPES},
        "lowering": {"quantisation": "dynamic"},
        "data": {"path": "sentences.txt", "calibration": CALIBRATION, "evaluation": EVALUATION},
    }
    path = terminal.folder / "int8.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture(scope="module")
def int8(terminal: CommandLine, int8_spec: Path, minilm: dict[str, Any]) -> dict[str, Any]:
    """The same model in INT8; its export is done already."""
    del minilm
    return terminal.document("compile", int8_spec)


@pytest.fixture(scope="module")
def sentences(terminal: CommandLine, server: Followed, minilm: dict[str, Any], minilm_folder: Path) -> dict[str, Any]:
    """The model behind its tokenizer; its export is done already."""
    del minilm
    options = ("--name", "sentences", "--pipeline", "--no-check-served", "--shapes", f"input_ids={SHAPES}")
    release = terminal.document("compile", f"hf:{minilm_folder}", *options)
    server.wait_for_models("sentences")
    return release


def manifest_of(compiled: dict[str, Any]) -> dict[str, Any]:
    document = json.loads(Path(compiled["manifest"]).read_text())
    assert isinstance(document, dict)
    return document


def tokens(transformer: Any, *sentences: str) -> dict[str, Any]:
    return dict(transformer.tokenizer(list(sentences), padding=True, return_tensors="np"))


def test_minilm_answers_from_triton(minilm: dict[str, Any], server: Followed, transformer: Any) -> None:
    """A directory becomes a release that explains itself, and Triton answers as PyTorch over both protocols."""
    import torch

    feed = tokens(transformer, "a cat on a mat", "the report is late again, as everyone expected", "ja")
    with torch.inference_mode():
        expected = transformer({name: torch.from_numpy(array) for name, array in feed.items()})
    counts = feed["attention_mask"].astype(bool)
    for url, over_http in ((server.http_url, True), (server.grpc_url, False)):
        answer = ask(url, "minilm", feed, over_http=over_http)
        np.testing.assert_allclose(
            answer["last_hidden_state"][counts], expected["token_embeddings"].numpy()[counts], atol=2e-5
        )
        np.testing.assert_allclose(answer["sentence_embedding"], expected["sentence_embedding"].numpy(), atol=2e-6)

    assert minilm["verdict"] == "passed"
    manifest, release = manifest_of(minilm), Path(minilm["model_path"])
    assert manifest["version"] == minilm["version"] == 1
    assert manifest["source"]["licence"] == "apache-2.0"
    assert [attempt["problem"] for attempt in manifest["onnx"]["attempts"]] == [None]
    checks = manifest["served"]["checks"]
    assert manifest["served"]["requests"] == len(checks) > 10
    assert {check["protocol"] for check in checks} == {"http", "grpc"}
    assert {check["batch"] for check in checks} >= {1, 2, 3, 4}
    assert [name for name in WRITTEN if not (release / name).is_file()] == []
    view = Path(minilm["repository"]) / "minilm"
    assert sorted(path.name for path in view.iterdir()) == ["1", "config.pbtxt"]
    assert (view / "1" / "model.onnx").samefile(release / "model" / "model.onnx")


@pytest.mark.usefixtures("sentences")
def test_documented_commands_ask_minilm(server: Followed, minilm_folder: Path, tmp_path: Path) -> None:
    """What the page on Triton says under "Asking a model" can be typed, and prints what stands there."""
    (tmp_path / "texts.json").write_text(json.dumps({"text": [["a cat"], ["a dog"]]}))
    asked = {"127.0.0.1:8001": server.grpc_url} | {
        f"infer {model} ": f"infer {model} --url {server.http_url} " for model in ("minilm", "sentences")
    }
    printed = follow("docs/triton.md", tmp_path, asked, headings=("Asking a model",))
    assert '"last_hidden_state": {' in printed, "JSON holds all outputs"
    with np.load(tmp_path / "answer.npz") as arrays:
        assert arrays["last_hidden_state"].shape == (1, 3, 384)
    with np.load(tmp_path / "embeddings.npz") as arrays:
        assert arrays["sentence_embedding"].shape == (2, 384)
    (code,) = code_blocks(section(read_page("triton"), "Asking a model"), "python")
    code = code.replace('"all-MiniLM-L6-v2"', repr(str(minilm_folder))).replace("127.0.0.1:8000", server.http_url)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("input ")
    assert done.stdout.endswith("(2, 384)\n")


def test_text_becomes_embedding(
    terminal: CommandLine, server: Followed, transformer: Any, minilm: dict[str, Any], sentences: dict[str, Any]
) -> None:
    """With --pipeline clients send texts of all kinds, at once, and get what sentence-transformers gives."""
    release = sentences
    odd = ["", "🙂 naïve — 東京", "word " * 400]
    texts = [*real_sentences()[: SENTENCES - len(odd)], *odd]
    batches = [texts[start : start + 7] for start in range(0, len(texts), 7)]  # of lengths that differ

    def answer(place: int) -> np.ndarray[Any, Any]:
        url, protocol = ((server.http_url, "http"), (server.grpc_url, "grpc"))[place % 2]
        with Client(url, model="sentences", protocol=protocol) as client:  # type: ignore[arg-type]
            return client.infer({"text": column(*(text.encode() for text in batches[place]))})["sentence_embedding"]

    expected = transformer.encode(texts, batch_size=16)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = np.concatenate(list(threads.map(answer, range(len(batches)))))
    np.testing.assert_allclose(answers, expected, atol=2e-5)
    with Client(server.http_url, model="sentences") as client, pytest.raises(ServedCheckError, match="UTF-8"):
        client.infer({"text": column(b"\xff\xfe")})
    typed = terminal.document("infer", "sentences", "--text", texts[0], "--url", server.http_url)
    np.testing.assert_allclose(typed["outputs"]["sentence_embedding"]["data"], expected[:1], atol=2e-5)

    assert (release["pipeline"]["input"], release["pipeline"]["output"]) == ("text", "embedding")
    assert set(release["members"]) == {"text", "model"}
    assert all(agreement["same"] for agreement in release["pipeline"]["agreements"])
    assert {step["name"] for step in release["steps"] if step["cached"]} >= {"export", "compile", "validate"}
    assert terminal.document("inspect", release["model_path"])["pipeline"]["members"] == release["members"]
    assert terminal.document("check", minilm["repository"])["findings"] == []


def test_int8_minilm_keeps_its_vectors(
    terminal: CommandLine, int8: dict[str, Any], int8_spec: Path, server: Followed, transformer: Any
) -> None:
    """In INT8 real sentences keep their vectors in a quarter of the bytes, and the release tells how."""
    server.wait_for_models("minilm-int8")
    sentences = real_sentences()[-8:]
    feed = tokens(transformer, *(" ".join(sentence.split()[:30]) for sentence in sentences))
    served = [ask(server.http_url, model, feed, over_http=True) for model in ("minilm", "minilm-int8")]
    vectors = [answer["sentence_embedding"] for answer in served]
    assert np.min(np.sum(vectors[0] * vectors[1], axis=1)) >= 0.98

    release, manifest = Path(int8["model_path"]), manifest_of(int8)
    assert (int8["precision"], int8["verdict"], manifest["validation"]["evidence"]) == ("int8", "passed", "given")
    evaluation = manifest["validation"]["evaluation"]
    hidden = next(agreement for agreement in evaluation["agreements"] if agreement["output"] == "last_hidden_state")
    assert evaluation["samples"] == EVALUATION
    assert hidden["mean_cosine"] >= 0.993
    assert hidden["min_cosine"] >= 0.98
    lowered, data = manifest["lowered"], manifest["data"]
    chosen = next(trial for trial in lowered["trials"] if trial["chosen"])
    assert chosen["file_bytes"] <= 0.28 * lowered["fp32_bytes"]
    (model,) = [file for file in manifest["files"] if file["path"] == "model/model.onnx"]
    assert model["bytes"] == chosen["file_bytes"], "what was tried is what is served"
    assert manifest["served"]["requests"] > 10
    assert len(set(data["evaluation"]["digests"])) == EVALUATION
    assert not set(data["evaluation"]["digests"]) & set(data["calibration"]["digests"])
    recipe = lowered["recipe"]
    assert recipe["calibration_samples"] == len(data["calibration"]["rows"]) >= CALIBRATION
    assert recipe["lowered"]["MatMul"] == 36
    assert all(node["reason"] for node in recipe["kept"])
    assert len(lowered["layers"]) >= 36
    names = {file.relative_to(release).parts[0] for file in release.rglob("*") if file.is_file()}
    assert not names & {"calibration", "evaluation"}
    statement, bom = check_release(release)
    (_, sentences_used) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert sentences_used["annotations"]["plansmith:digest"] == data["digest"]
    (source,) = [entry for entry in bom["components"] if entry["bom-ref"] == "source"]
    assert source["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert recipe["method"] in (release / "report.html").read_text()

    again = terminal.document("compile", int8_spec)
    assert again["unchanged"]
    assert all(step["cached"] for step in again["steps"])
    plan = terminal.document("compile", int8_spec, "--precision", "fp32", "--dry-run")["plan"]
    assert (plan["export"], plan["sample"], plan["validate"]) == ("cached", "cached", "would run")


def test_int8_report_opens_in_chromium(int8: dict[str, Any], tmp_path: Path) -> None:
    """The page of a release shows its verdict on the first screen, fits, and loads nothing."""
    page = Path(int8["model_path"]) / "report.html"
    with browser.running(tmp_path) as chromium:
        for width, height in ((390, 844), DESKTOP):
            chromium.open(page, width=width, height=height)
            assert chromium.evaluate("document.documentElement.scrollWidth") == width
            assert chromium.evaluate("document.querySelector('h1').innerText.trim()") == "Passed"
            assert 0 < chromium.evaluate("document.querySelector('h1').getBoundingClientRect().bottom") < height / 2
            addresses = [event["request"]["url"] for event in chromium.happened("Network.requestWillBeSent")]
            assert [address for address in addresses if not address.startswith("data:")] == [page.as_uri()]
            for kind in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                assert chromium.happened(kind) == []
        assert chromium.evaluate("document.title") == "Passed: minilm-int8, version 1"
