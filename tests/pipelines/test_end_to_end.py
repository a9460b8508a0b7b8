"""Specs with pipelines through the real command and the real Triton."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
import yaml

from plansmith.errors import ServedCheckError
from plansmith.pipelines.audio.pipeline import AUDIO, drawn_sound, wav
from plansmith.pipelines.image.pipeline import IMAGE
from plansmith.pipelines.image.reference import image_questions, open_image
from plansmith.triton.client import Client

from ..support.cli.commands import compile_model, serve
from ..support.models.clip import clip
from ..support.pipelines.columns import column
from .audio.test_transcripts import recogniser
from .image.test_objects import PADDED, detr
from .image.test_segmentation import segformer
from .image.test_zero_shot import LABELS, files, library, processor, request

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end-to-end")]


def _detector(folder: Path) -> Path:
    kind: Any = transformers.DetrImageProcessor
    return detr(folder / "model", kind(**PADDED))


def _segmenter(folder: Path) -> Path:
    return segformer(folder / "model", transformers.SegformerImageProcessor(size={"height": 64, "width": 96}))


MODELS: dict[str, tuple[Callable[[Path], Path], dict[str, Any], dict[str, Any]]] = {
    "transcript": (
        lambda folder: recogniser(folder, masked=True),
        {},
        {AUDIO: column(wav(drawn_sound(16_000, 16_000, 1), 16_000))},
    ),
    "objects": (_detector, {"threshold": 0.25}, image_questions(IMAGE, max_batch=3)["batch"]),
    "segmentation": (_segmenter, {}, image_questions(IMAGE, max_batch=3, one_size=True)["batch"]),
}


def test_triton_hears_flac_and_mp3(tmp_path: Path) -> None:
    """The questions of a spec that asks for them hold such files, and the check of the release sends them."""
    pytest.importorskip("soundfile")
    spec = {"source": f"hf:{recogniser(tmp_path)}", "name": "reader", "pipeline": {"compressed_audio": True}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    release = compile_model(tmp_path / "artifacts", str(tmp_path / "spec.yaml"))
    assert (release["verdict"], list(release["members"])) == ("passed", ["sound", "model", "transcript"])


@pytest.mark.parametrize("output", MODELS)
def test_triton_answers_readable_text(output: str, tmp_path: Path) -> None:
    """As the source's library answers it, which the check of the release sees to; and to several rows at once."""
    build, options, request = MODELS[output]
    spec = {"source": f"hf:{build(tmp_path)}", "name": "reader", "pipeline": options}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    release = compile_model(tmp_path / "artifacts", str(tmp_path / "spec.yaml"))
    assert (release["verdict"], list(release["members"])[-1]) == ("passed", output)
    with (
        serve(release["repository"], "reader", tmp_path / "said") as (http, _),
        Client(http, model="reader") as client,
    ):
        answer = client.infer(request)
    if output == "transcript":
        assert len({*answer["text"][0, 0].decode()}) > 3
    if output == "objects":
        assert sum(len(json.loads(row)) for row in answer["objects"].reshape(-1)) > 3
    if output == "segmentation":
        assert answer["class_map"].shape == (3, 300, 400)
        assert answer["class_map"].dtype == np.uint8
        assert all(sum(segment["pixels"] for segment in json.loads(row)) == 120_000 for (row,) in answer["segments"])


def test_triton_ranks_request_texts(tmp_path: Path) -> None:
    """As transformers ranks them: in several numbers and languages, for several images at once; what is wrong is told.

    The spec says nothing but that there is a pipeline.
    """
    folder = clip(tmp_path / "model", processor())
    spec = {"source": f"hf:{folder}", "name": "chooser", "pipeline": {}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    release = compile_model(tmp_path / "artifacts", str(tmp_path / "spec.yaml"))
    assert (release["verdict"], list(release["members"])) == ("passed", ["images", "texts", "model", "zero-shot"])
    own = library(folder)
    images = files(2)
    with (
        serve(release["repository"], "chooser", tmp_path / "said") as (http, grpc),
        Client(http, model="chooser") as client,
        Client(grpc, model="chooser", protocol="grpc") as grpc_client,
    ):
        for caller, count in itertools.product((client, grpc_client), (1, 2, 3, len(LABELS))):
            texts = [LABELS[:count], LABELS[::-1][:count]]
            answer = caller.infer(request(images, *texts))
            for row, (image, listed) in enumerate(zip(images, texts, strict=True)):
                owed = {
                    entry["label"]: entry["score"] for entry in own(open_image(image), candidate_labels=list(listed))
                }
                scores = [owed[label.decode()] for label in answer["label"][row]]
                assert sorted(answer["score"][row], reverse=True) == answer["score"][row].tolist()
                np.testing.assert_allclose(answer["score"][row], scores, atol=1e-5)
        for caller in (client, grpc_client):
            with pytest.raises(ServedCheckError, match="texts, row 0, text 1 is empty"):
                caller.infer(request(images, ["cat", ""], ["cat", "dog"]))
        with pytest.raises(ServedCheckError, match="the image in row 0 is refused"):
            client.infer(request([b"no image"], ["cat"]))
