"""Maps of classes are those of transformers' semantic segmentation, in the size of the image that was sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import UsageError
from plansmith.pipelines.agreement import RawLimits, compare
from plansmith.pipelines.draft import write_part
from plansmith.pipelines.image.kinds import image_output
from plansmith.pipelines.image.pipeline import IMAGE, plan_images
from plansmith.pipelines.image.reference import bytes_array
from plansmith.pipelines.served.postprocessing.segmentation import class_map
from plansmith.pipelines.served.requests import Refusal
from plansmith.records.model import Precision
from plansmith.validation.comparison import LIMITS

from ...support.models.architectures import load, save
from ...support.pipelines.columns import column
from ...support.pipelines.images import encoded, photographs
from ...support.pipelines.texts import Served
from .test_plan_images import graph, load_by_pillow

SEGFORMER: dict[str, Any] = {
    "hidden_sizes": [16, 24, 32, 40],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 4, 5],
    "decoder_hidden_size": 32,
}
LIMIT = RawLimits({}, LIMITS[Precision.FP32].tolerance, 1e-5, exact=True)


def segformer(folder: Path, processor: Any, classes: int = 7, **changed: Any) -> Path:
    """A SegFormer for so many classes."""

    def lively(model: Any) -> None:
        last = model.decode_head.classifier
        last.weight.sub_(last.weight.mean(dim=1, keepdim=True)).mul_(50)  # so that no class is likeliest everywhere
        last.bias.zero_()
        for name, weight in model.named_parameters():
            if "patch_embeddings" in name or ".linear_c." in name:
                weight.mul_(8)

    names = {number: f"kind {number}" for number in range(classes)}
    fields = SEGFORMER | {"id2label": names} | changed
    return save(folder, "SegformerForSemanticSegmentation", "SegformerConfig", processor, change=lively, **fields)


def serve(folder: Path, monkeypatch: pytest.MonkeyPatch, classes: int = 7, **options: Any) -> Served:
    """Plan and write the pipeline around a model, with a processor of Pillow's: only rounding is between them."""
    processor = transformers.SegformerImageProcessorPil(size={"height": 64, "width": 96})
    load_by_pillow(monkeypatch, processor)
    live = load(segformer(folder / "model", processor, classes))
    settings = PipelineOptions.model_validate(options)
    draft = plan_images(live, folder / "model", settings, graph(live), scheme="hf", task="", trust_remote_code=False)
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, folder / "out")
    return Served(live, draft, folder / "out")


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "dtype"), [(7, "uint8"), (300, "int32")])
def test_map_matches_transformers(classes: int, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In files of all kinds, several images of one size in one request, and in numbers that hold all classes."""
    served = serve(tmp_path, monkeypatch, classes)

    assert served.draft.output == "segmentation"
    assert [(t.name, t.dtype, t.dims) for t in served.draft.outputs] == [
        ("class_map", dtype, ("batch", "map_height", "map_width")),
        ("segments", "string", ("batch", 1)),
    ]
    assert len(served.draft.questions["batch"][IMAGE]) == 3
    photos = {name: {IMAGE: bytes_array([encoded(image, "JPEG")])} for name, image in photographs().items()}
    ids: set[int] = set()
    for case, request in {**served.draft.questions, **photos}.items():
        answer = served.answer(request)
        comparison = compare(case, served.draft.ask(request), answer, LIMIT)
        assert comparison.same, comparison.failures
        for row, (text,) in zip(answer["class_map"], answer["segments"], strict=True):
            segments = json.loads(text)
            ids |= {segment["id"] for segment in segments}
            assert {segment["id"]: segment["pixels"] for segment in segments} == dict(
                zip(*(part.tolist() for part in np.unique(row, return_counts=True)), strict=True)
            )
            assert all(segment["label"] == f"kind {segment['id']}" for segment in segments)
    assert len(ids) > 2


@pytest.mark.parametrize("size", [(64, 96), (480, 641), (17, 5), (1, 1), (16, 24), (33, 700)])
def test_logits_enlarged_like_pytorch(size: tuple[int, int]) -> None:
    """To larger and smaller sizes, and to their own."""
    logits = np.random.default_rng(1).normal(0, 1, (11, 16, 24)).astype(np.float32)
    enlarged = torch.nn.functional.interpolate(torch.from_numpy(logits)[None], size=size, mode="bilinear")
    owed = enlarged[0].argmax(dim=0).numpy()
    assert (class_map(logits, *size, "uint8") != owed).sum() <= 1e-4 * owed.size


def test_mixed_sizes_refused_in_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tensor has one height and width; requests of another size that come at the same time are answered."""
    served = serve(tmp_path, monkeypatch)
    jpeg, png = (served.draft.questions[name][IMAGE][0, 0] for name in ("jpeg", "png"))

    refused, first, second = served.answers([{IMAGE: bytes_array(files)} for files in ([jpeg, png], [jpeg], [png])])

    assert isinstance(refused, Refusal)
    assert "400 x 300 to 281 x 500 pixels" in refused.message
    assert not isinstance(first, Refusal)
    assert not isinstance(second, Refusal)
    assert (first["class_map"].shape, second["class_map"].shape) == ((1, 300, 400), (1, 500, 281))


def test_oversized_map_image_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before its pixels are decoded."""
    from PIL import Image

    served = serve(tmp_path, monkeypatch)
    (refused,) = served.answers([{IMAGE: bytes_array([encoded(Image.new("L", (5000, 4000)), "PNG")])}])
    assert isinstance(refused, Refusal)
    assert "5000 x 4000 pixels are more than 16777216" in refused.message


def test_segmenters_known_by_files(tmp_path: Path) -> None:
    """A task of segmentation has models of other kinds, whose answers are other ones."""
    for name, task, output in (
        ("SegformerForSemanticSegmentation", "", "segmentation"),
        ("SegformerForSemanticSegmentation", "image-segmentation", "segmentation"),
        ("BeitForSemanticSegmentation", "semantic-segmentation", "segmentation"),
        ("Mask2FormerForUniversalSegmentation", "image-segmentation", "tensors"),
        ("Mask2FormerForUniversalSegmentation", "", "tensors"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
        assert image_output("hf", tmp_path, task) == output


def test_segmenter_without_logits_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And so is one whose processor makes maps by other rules."""
    processor = transformers.ViTImageProcessorPil(size={"height": 64, "width": 64})
    load_by_pillow(monkeypatch, processor)
    folder = segformer(tmp_path / "model", processor)
    live = load(folder)
    with pytest.raises(UsageError, match="a processor that is one of BeitImageProcessor"):
        plan_images(live, folder, PipelineOptions(), graph(live), scheme="hf", task="", trust_remote_code=False)


def mapped(classes: Any, **counts: int) -> dict[str, Any]:
    """An answer with one map of 100 x 100."""
    segments = [{"id": number, "label": name, "pixels": count} for number, (name, count) in enumerate(counts.items())]
    return {"class_map": classes[None].astype(np.uint8), "segments": column(json.dumps(segments).encode())}


def test_maps_agree_within_few_pixels() -> None:
    """One of a thousand may be of another class where two are all but equally likely."""
    owed = np.zeros((100, 100))
    few, many = owed.copy(), owed.copy()
    few[0, :10], many[0, :11] = 1, 1
    expected = mapped(owed, wall=10_000)

    assert compare("one", expected, mapped(few, wall=9_990, sky=10), LIMIT).same
    assert compare("one", expected, mapped(many, wall=9_989, sky=11), LIMIT).failures[0] == (
        "class_map of row 0 has another class in 11 of 10000 pixels"
    )
    assert not compare("one", expected, mapped(owed, sky=10_000), LIMIT).same
    assert not compare("one", expected, mapped(owed, wall=9_000, sky=1_000), LIMIT).same
