"""Pipelines through the real command and the real Triton, beside the source's own library."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plansmith.errors import ServedCheckError
from plansmith.triton.client import Client

from ..integration.test_end_to_end import compile_model, run, serve
from ..support.real_sentences import real_sentences
from .pictures import encoded, photographs
from .test_raw_cases import texts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end-to-end")]

SHIPPED = Path(__file__).parents[2] / "configs" / "models"
SENTENCES = 256
AT_ONCE = 4


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> dict[str, Any]:
    """all-MiniLM-L6-v2 with its real weights, as an ensemble that takes texts."""
    folder = tmp_path_factory.mktemp("sentences")
    shapes = ["--shapes", "input_ids=1x1:8x32:16x256"]
    return compile_model(folder, f"hf:{minilm_folder}", "--name", "sentences", "--pipeline", *shapes)


def test_256_real_sentences_get_the_embeddings_that_sentence_transformers_gives_them(
    sentences: dict[str, Any], minilm_folder: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(minilm_folder), device="cpu").eval()
    odd = ["", "🙂 naïve — 東京", "word " * 400]
    asked = [*real_sentences()[: SENTENCES - len(odd)], *odd]
    expected = model.encode(asked, batch_size=16)
    batches = [asked[start : start + 7] for start in range(0, len(asked), 7)]  # of lengths that differ
    with serve(sentences["repository"], "sentences", tmp_path / "said") as (http, grpc):

        def ask(place: int) -> np.ndarray[Any, Any]:
            url, protocol = ((http, "http"), (grpc, "grpc"))[place % 2]
            with Client(url, model="sentences", protocol=protocol) as client:  # type: ignore[arg-type]
                sent = texts(*(text.encode() for text in batches[place]))
                return client.infer({"text": sent})["sentence_embedding"]

        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = np.concatenate(list(threads.map(ask, range(len(batches)))))
        with Client(http, model="sentences") as client:
            with pytest.raises(ServedCheckError, match="UTF-8"):
                client.infer({"text": texts(b"\xff\xfe")})
            again = client.infer({"text": texts(asked[0].encode())})["sentence_embedding"]
    np.testing.assert_allclose(answers, expected, atol=2e-5)
    np.testing.assert_allclose(again[0], expected[0], atol=2e-5)


def test_the_release_tells_of_its_parts_and_is_sound(sentences: dict[str, Any]) -> None:
    assert sentences["pipeline"]["input"] == "text"
    assert sentences["pipeline"]["output"] == "embedding"
    assert set(sentences["members"]) == {"text", "model"}
    assert all(one["same"] for one in sentences["pipeline"]["agreements"])
    found = json.loads(run("inspect", sentences["model_path"], "--json"))
    assert found["pipeline"]["members"] == sentences["members"]
    assert json.loads(run("check", sentences["repository"], "--json"))["findings"] == []


def test_images_as_files_get_the_labels_that_timm_gives_them(tmp_path: Path) -> None:
    import timm
    import torch
    from timm.models import save_for_hf

    model = timm.create_model("resnet10t", pretrained=False, num_classes=12).eval()
    save_for_hf(model, str(tmp_path / "resnet10t"), safe_serialization=True)
    made = compile_model(
        tmp_path / "artifacts",
        *(f"timm:{tmp_path / 'resnet10t'}", "--name", "pictures", "--pipeline"),
        *("--shapes", "pixel_values=1x3x176x176:4x3x176x176:16x3x176x176"),
    )
    assert list(made["members"]) == ["images", "model", "labels"]
    shown = list(photographs().values())
    shown = [*shown, *(one.convert(mode) for one in shown for mode in ("L", "RGBA", "CMYK"))]
    files = [encoded(one, "PNG" if one.mode == "RGBA" else "JPEG", quality=95) for one in shown]
    transform: Any = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    with torch.inference_mode():
        pixels = torch.stack([transform(Image.open(BytesIO(file)).convert("RGB")) for file in files])
        scores, places = model(pixels).softmax(-1).topk(5)
    with (
        serve(made["repository"], "pictures", tmp_path / "said") as (http, _),
        Client(http, model="pictures") as client,
    ):
        answer = client.infer({"image": texts(*files)})
        alone = client.infer({"image": texts(files[-1])})
        with pytest.raises(ServedCheckError, match="image"):
            client.infer({"image": texts(files[0][:50])})
    np.testing.assert_allclose(answer["score"], scores.numpy(), atol=1e-5)
    np.testing.assert_allclose(alone["score"], scores.numpy()[-1:], atol=1e-5)
    for row, own in enumerate(places.tolist()):
        tied = np.diff(scores.numpy()[row]) > -2e-5
        assert tied.any() or [label.decode() for label in answer["label"][row]] == [str(place) for place in own]


def test_the_shipped_spec_that_needs_no_hub_finds_other_entities_in_every_sentence(tmp_path: Path) -> None:
    made = compile_model(tmp_path / "artifacts", str(SHIPPED / "bert-entities-random.yaml"))
    assert (made["verdict"], list(made["members"])) == ("passed", ["text", "model", "tags"])
    asked = real_sentences()[:32]
    with (
        serve(made["repository"], "bert-entities-random", tmp_path / "said") as (http, _),
        Client(http, model="bert-entities-random") as client,
    ):
        answers = [
            client.infer({"text": texts(*(text.encode() for text in asked[start : start + 16]))})["entities"]
            for start in (0, 16)
        ]
    found = [json.loads(text) for text in np.concatenate(answers).reshape(-1)]
    assert {one["entity_group"] for entities in found for one in entities} == {"PER", "ORG", "LOC", "MISC"}
    assert len({tuple((one["entity_group"], one["word"]) for one in entities) for entities in found}) == len(asked)
    for text, entities in zip(asked, found, strict=True):
        places = [(one["start"], one["end"]) for one in entities]
        assert places == sorted(places)
        assert all(0 <= start < end <= len(text) for start, end in places)
