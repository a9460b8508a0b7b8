"""Models of all kinds and engines, compiled into one repository, and asked of the one Triton that follows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from plansmith.errors import ServedCheckError
from plansmith.triton.client import Client

from ..support.cli.command import CommandLine
from ..support.cli.commands import ask
from ..support.faults.groups import namespaces_allowed
from ..support.models.graphs import save_product
from ..support.models.python_backend import ODD_INPUTS, write_odd
from ..support.pipelines.classifiers import classifier, save_classifiers
from ..support.pipelines.columns import column
from ..support.pipelines.images import encoded, photographs, timm_scores
from ..support.real_sentences import real_sentences
from ..support.triton.followed import Followed

SIDE, CLASSES = 160, 12
PIXELS = f"1x3x{SIDE}x{SIDE}:2x3x{SIDE}x{SIDE}:4x3x{SIDE}x{SIDE}"
ROUTE = '''
"""Says what a text is about where its mood is clear, and the mood elsewhere."""

import numpy as np
from plansmith_served.scripting import Refused

OUTPUTS = {"label": ("string", ["batch", 1]), "asked": ("int64", ["batch", 1])}


def answer(inputs, models):
    if any(len(text) == 0 for text in inputs["text"].flat):
        raise Refused("no text is empty")
    mood = models["main"](text=inputs["text"])
    clear = mood["score"][:, :1] > 0.4
    label = mood["label"][:, :1].copy()
    if clear.any():
        label[clear] = models["topics"](text=inputs["text"])["label"][:, :1][clear]
    return {"label": label, "asked": np.where(clear, 2, 1).astype(np.int64)}
'''


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """One folder for all models."""
    return CommandLine(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def resnet(terminal: CommandLine) -> Any:
    """A small network with random weights, saved in the folder as timm saves it."""
    import timm
    from timm.models import save_for_hf

    model = timm.create_model("test_resnet", pretrained=False, num_classes=CLASSES).eval()
    save_for_hf(model, str(terminal.folder / "resnet"), safe_serialization=True)
    return model


@pytest.fixture(scope="module")
def plain(terminal: CommandLine, resnet: Any) -> dict[str, Any]:
    """The network, which takes pixels."""
    del resnet
    return terminal.document("compile", "timm:./resnet", "--shapes", f"pixel_values={PIXELS}")


@pytest.fixture(scope="module")
def server(plain: dict[str, Any]) -> Iterator[Followed]:
    """`plansmith serve --follow`, which takes up what is compiled later."""
    with Followed(Path(plain["repository"])) as server:
        yield server.wait_for_models("resnet")


def compile_spec(terminal: CommandLine, name: str, **spec: Any) -> dict[str, Any]:
    """Compile a spec that lies in the folder; the test itself asks Triton."""
    whole = {"name": name, "artifacts": "artifacts", "check_served": False, **spec}
    (terminal.folder / f"{name}.yaml").write_text(yaml.safe_dump(whole))
    return terminal.document("compile", f"{name}.yaml")


def test_timm_model_answers_from_triton(
    terminal: CommandLine, plain: dict[str, Any], resnet: Any, server: Followed
) -> None:
    """A directory of timm's becomes a release that answers as timm, and the same command finds it unchanged."""
    import torch

    pixels = np.random.default_rng(0).normal(size=(3, 3, SIDE, SIDE)).astype(np.float32)
    with torch.inference_mode():
        expected = resnet(torch.from_numpy(pixels)).numpy()
    (answer,) = ask(server.grpc_url, "resnet", {"pixel_values": pixels}, over_http=False).values()
    np.testing.assert_allclose(answer, expected, atol=1e-4 * np.abs(expected).max())
    assert (plain["name"], plain["verdict"]) == ("resnet", "passed")
    assert len(plain["served"]["checks"]) > 5
    again = terminal.document("compile", "timm:./resnet", "--shapes", f"pixel_values={PIXELS}")
    assert (again["version"], again["unchanged"]) == (1, True)
    assert all(step["cached"] for step in again["steps"])


def test_image_becomes_label(terminal: CommandLine, resnet: Any, server: Followed) -> None:
    """With --pipeline image files of all kinds get the labels that timm gives them, and a broken one is refused."""
    options = ("--name", "pictures", "--pipeline", "--no-check-served", "--shapes", f"pixel_values={PIXELS}")
    release = terminal.document("compile", "timm:./resnet", *options)
    assert list(release["members"]) == ["images", "model", "labels"]
    server.wait_for_models("pictures")
    shown = list(photographs().values())
    shown = [*shown, *(image.convert(mode) for image in shown[:2] for mode in ("L", "RGBA", "CMYK"))]
    files = [encoded(image, "PNG" if image.mode == "RGBA" else "JPEG", quality=95) for image in shown]
    scores, places = timm_scores(resnet, files).topk(5)
    with Client(server.http_url, model="pictures") as client:
        answer = client.infer({"image": column(*files)})
        alone = client.infer({"image": column(files[-1])})
        with pytest.raises(ServedCheckError, match="image"):
            client.infer({"image": column(files[0][:50])})
    np.testing.assert_allclose(answer["score"], scores.numpy(), atol=1e-5)
    np.testing.assert_allclose(alone["score"], scores.numpy()[-1:], atol=1e-5)
    for row, own in enumerate(places.tolist()):
        tied = np.diff(scores.numpy()[row]) > -2e-5
        assert tied.any() or [label.decode() for label in answer["label"][row]] == [str(place) for place in own]
    (terminal.folder / "flower.jpg").write_bytes(files[1])
    typed = terminal.document("infer", "pictures", "--file", "flower.jpg", "--url", server.http_url)
    assert typed["outputs"]["label"]["data"][0] == [label.decode() for label in answer["label"][1]]


def test_dali_reads_images(terminal: CommandLine, resnet: Any) -> None:
    """With DALI in place of Pillow an image file gets the scores that timm gives it, all but for rounding."""
    release = compile_spec(
        terminal,
        "quick",
        source="timm:./resnet",
        shapes={"pixel_values": PIXELS},
        pipeline={"input": "image", "output": "labels", "preprocessing": "dali", "top_k": CLASSES},
    )
    assert list(release["members"]) == ["encoded", "dali", "model", "labels"]
    assert all(agreement["same"] for agreement in release["pipeline"]["agreements"])
    package = json.loads(Path(release["manifest"]).read_text())["package"]
    (dali,) = [member for member in package["members"] if member["part"] == "dali"]
    assert (dali["backend"], dali["model_files"]) == ("dali", ["model.dali"])
    config = (Path(release["model_path"]) / "members" / "dali" / "config.pbtxt").read_text()
    assert "dynamic_batching" not in config, "an image that DALI cannot decode harms no request but its own"
    assert 'key: "num_threads"' in config
    flower = encoded(photographs()["flower"], "PNG")
    (terminal.folder / "flower.png").write_bytes(flower)
    typed = terminal.document("infer", "quick", "--file", "flower.png", "--serve")["outputs"]
    (labels,), (scores,) = typed["label"]["data"], typed["score"]["data"]
    expected = timm_scores(resnet, [flower]).numpy()[0]
    np.testing.assert_allclose(scores, [expected[int(label)] for label in labels], atol=5e-3)


def test_fp16_model_answers_from_triton(terminal: CommandLine, plain: dict[str, Any], server: Followed) -> None:
    """In FP16 the same graph is half as large, and answers all but the same."""
    options = ("--name", "half", "--precision", "fp16", "--no-check-served", "--shapes", f"pixel_values={PIXELS}")
    release = terminal.document("compile", "timm:./resnet", *options)
    assert (release["precision"], release["verdict"]) == ("fp16", "passed")
    assert [step["name"] for step in release["steps"] if step["cached"]][:2] == ["fetch", "export"]
    server.wait_for_models("half")
    size, whole = (Path(entry["model_path"], "model", "model.onnx").stat().st_size for entry in (release, plain))
    assert size < 0.6 * whole
    pixels = np.random.default_rng(1).normal(size=(2, 3, SIDE, SIDE)).astype(np.float32)
    (rounded,), (exact,) = (
        ask(server.http_url, name, {"pixel_values": pixels}, over_http=True).values() for name in ("half", "resnet")
    )
    np.testing.assert_allclose(rounded, exact, atol=0.1 * np.sqrt(np.mean(exact**2)))


def test_onnx_file_answers_from_triton(terminal: CommandLine, server: Followed) -> None:
    """A file with weights beside it is served as it is, and is left alone."""
    folder = terminal.folder / "a person's own"
    folder.mkdir()
    path, weight = save_product(folder)
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    release = terminal.document("compile", f"onnx:{path}", "--shapes", "x=1x3x64:2x3x64:4x3x64")
    assert (release["name"], release["verdict"]) == ("net", "passed")
    assert {check["batch"] for check in release["served"]["checks"]} == {1, 2, 3}
    server.wait_for_models("net")
    x = np.random.default_rng(1).normal(size=(3, 3, 64)).astype(np.float32)
    for url, over_http in ((server.http_url, True), (server.grpc_url, False)):
        answer = ask(url, "net", {"x": x}, over_http=over_http)["y"]
        np.testing.assert_allclose(answer, x @ weight, rtol=1e-4, atol=1e-5)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_pytorch_model_answers_from_triton(terminal: CommandLine, server: Followed) -> None:
    """A model that no exporter can follow is served as PyTorch by Triton's Python backend."""
    write_odd(terminal.folder / "odd")
    release = compile_spec(
        terminal,
        "odd",
        source="hf:./odd",
        engine="python",
        precision="bf16",
        trust_remote_code=True,
        inputs=ODD_INPUTS,
        shapes={"input_ids": "1x1:2x8:4x16"},
        check_served=True,
    )
    assert (release["engine"], release["precision"], release["verdict"]) == ("python", "bf16", "passed")
    assert release["served"]["backend"] == "real"
    (manifest,) = terminal.folder.rglob("releases/odd/*/manifest.json")
    assert json.loads(manifest.read_text())["onnx"]["isolation"]["complete"] == namespaces_allowed()
    assert terminal.document("compile", "odd.yaml")["unchanged"]
    for command in ("show", "validate", "report"):
        terminal.text(command, "odd")
    server.wait_for_models("odd")
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    answer = ask(server.http_url, "odd", {"input_ids": ids}, over_http=True)["last_hidden_state"]
    assert answer.shape == (2, 3, 8)
    assert answer.dtype == np.float32
    assert np.abs(answer).max(axis=(1, 2)).min() >= 100  # as often as each row wants it


def test_script_routes_texts_to_models(terminal: CommandLine, server: Followed) -> None:
    """A release of two models and a script that asks them answers as the script does where transformers answers."""
    save_classifiers(terminal.folder)
    (terminal.folder / "route.py").write_text(ROUTE)
    shapes = {"input_ids": "1x1:2x32:4x128"}
    release = compile_spec(
        terminal,
        "router",
        source="hf:./mood",
        shapes=shapes,
        pipeline={"script": "route.py", "models": {"topics": {"source": "hf:./topics", "shapes": shapes}}},
    )
    assert set(release["members"]) == {"text", "model", "labels", "topics-model", "topics-labels"}
    server.wait_for_models("router")
    texts = real_sentences()[:16]
    with Client(server.grpc_url, model="router", protocol="grpc") as client:
        answers = [client.infer({"text": column(*texts[start : start + 4])}) for start in range(0, len(texts), 4)]
        with pytest.raises(ServedCheckError, match="no text is empty"):
            client.infer({"text": column("a dog", "")})
    label, ways = (np.concatenate([answer[name] for answer in answers])[:, 0] for name in ("label", "asked"))
    assert {*ways} == {1, 2}, "both ways were taken"
    for way, model in ((1, "mood"), (2, "topics")):
        texts_of_way = [text for text, choice in zip(texts, ways, strict=True) if choice == way]
        owed = classifier(terminal.folder / model, top_k=1).scores(texts_of_way)
        labels = [row[text.decode()] for row, text in zip(owed, label[ways == way], strict=True)]
        np.testing.assert_allclose(labels, [max(row.values()) for row in owed], atol=1e-4)
    typed = terminal.document("infer", "router", "--text", texts[0], "--url", server.http_url)
    assert json.dumps(typed["outputs"]["label"]["data"]) == json.dumps([[label[0].decode()]])
