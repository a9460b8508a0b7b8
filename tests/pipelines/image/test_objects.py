"""Objects in images are those that transformers' object detection finds, in pixels of the image that was sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import EngineError, SourceError, UsageError
from plansmith.pipelines.agreement import RawLimits, compare
from plansmith.pipelines.dali.recipe import recipe_from_settings
from plansmith.pipelines.draft import run_parts, write_part
from plansmith.pipelines.image.kinds import image_output
from plansmith.pipelines.image.pipeline import IMAGE, plan_images
from plansmith.pipelines.image.reference import bytes_array
from plansmith.pipelines.served.postprocessing.objects import ObjectsStep
from plansmith.records.model import Precision, Tensor
from plansmith.validation.comparison import LIMITS

from ...support.models.architectures import IMAGE as SMALL
from ...support.models.architectures import WRITER, load, save
from ...support.pipelines.columns import column
from ...support.pipelines.images import encoded, photographs
from ...support.pipelines.texts import Served
from .test_plan_images import RESNET, graph, load_by_pillow, require_near

CLASSES = {0: "cat", 1: "dög", 2: "N/A", 3: "🚗"}
PADDED = {"size": {"shortest_edge": 64, "longest_edge": 96}, "pad_size": {"height": 96, "width": 96}}
LIMIT = RawLimits({}, LIMITS[Precision.FP32].tolerance, 1e-5, exact=True)


def lively(model: Any) -> None:
    """Make a detector that has random weights see something, in different places."""
    for name, weight in model.named_parameters():
        if name.startswith(("class_labels_classifier", "bbox_predictor")):
            weight.mul_(4)
        if name.startswith("class_labels_classifier") and weight.shape == (len(CLASSES) + 1,):
            weight[-1] = -4  # what stands for no object


def detr(folder: Path, processor: Any) -> Path:
    """A DETR on a ResNet."""
    config: Any = transformers.ResNetConfig
    backbone = config(**RESNET | {"out_features": ["stage2"]})
    fields = {key: value for key, value in WRITER.items() if key.endswith(("layers", "heads", "_dim", "d_model"))}
    fields |= {"num_queries": 6, "backbone_config": backbone, "use_timm_backbone": False, "id2label": CLASSES}
    return save(folder, "DetrForObjectDetection", "DetrConfig", processor, change=lively, **fields)


def rt_detr(folder: Path, processor: Any) -> Path:
    """An RT-DETR on a ResNet, whose queries may each name several classes."""

    def sensible(model: Any) -> None:
        for name, weight in model.named_parameters():
            if "class_embed" in name and name.endswith("bias"):
                weight.zero_()

    config: Any = transformers.RTDetrResNetConfig
    sizes = [8, 12, 16, 20]
    stages = [f"stage{number}" for number in (2, 3, 4)]
    backbone = config(embedding_size=8, hidden_sizes=sizes, depths=[1] * 4, layer_type="basic", out_features=stages)
    fields: dict[str, Any] = dict.fromkeys(("encoder_hidden_dim", "d_model"), 16)
    fields |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24)
    fields |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "decoder_layers"), 2)
    fields |= {"encoder_in_channels": sizes[1:], "decoder_in_channels": [16] * 3, "num_queries": 9, "num_denoising": 0}
    fields |= {"backbone_config": backbone, "use_timm_backbone": False, "id2label": CLASSES}
    return save(folder, "RTDetrForObjectDetection", "RTDetrConfig", processor, change=sensible, **fields)


def yolos(folder: Path, processor: Any) -> Path:
    """A YOLOS for images of 96 x 96."""
    fields = SMALL | {"image_size": [96, 96], "num_detection_tokens": 7, "id2label": CLASSES}
    return save(folder, "YolosForObjectDetection", "YolosConfig", processor, change=lively, **fields)


MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "detr": (detr, transformers.DetrImageProcessorPil, {"size": {"height": 64, "width": 80}}),
    "rt-detr": (rt_detr, transformers.RTDetrImageProcessorPil, {"size": {"height": 64, "width": 64}}),
    "padded detr": (detr, transformers.DetrImageProcessorPil, PADDED),
    "yolos": (yolos, transformers.YolosImageProcessorPil, {"size": {"height": 96, "width": 96}}),
    "padded yolos": (yolos, transformers.YolosImageProcessorPil, PADDED),
}


def serve(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Served:
    """Plan and write the pipeline around a model, with a processor of Pillow's: only rounding is between them."""
    build, kind, settings = MODELS[name]
    processor = kind(**settings)
    load_by_pillow(monkeypatch, processor)
    live = load(build(folder / "model", processor))
    pipeline_options = PipelineOptions.model_validate(options)
    draft = plan_images(
        live, folder / "model", pipeline_options, graph(live), scheme="hf", task="", trust_remote_code=False
    )
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, folder / "out")
    return Served(live, draft, folder / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_objects_match_transformers(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their labels, scores and boxes, in files of all kinds, and in photographs of different sizes in one request."""
    served = serve(name, tmp_path, monkeypatch, threshold=0.25)
    files = [encoded(image, "JPEG") for image in photographs().values()]

    assert served.draft.output == "objects"
    assert served.draft.outputs == (Tensor(name="objects", dtype="string", dims=("batch", 1)),)
    objects: list[dict[str, Any]] = []
    for case, request in {**served.draft.questions, "photographs": {IMAGE: bytes_array(files)}}.items():
        answer = served.answer(request)
        comparison = compare(case, served.draft.ask(request), answer, LIMIT)
        assert comparison.same, comparison.failures
        objects += [entry for row in answer["objects"].reshape(-1) for entry in json.loads(row)]
    assert len(objects) > 10
    assert len({tuple(entry["box"].values()) for entry in objects}) > 5
    assert all(entry["score"] > 0.25 and entry["label"] in CLASSES.values() for entry in objects)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (transformers.DetrImageProcessor, None),
        (transformers.YolosImageProcessor, None),
        (transformers.RTDetrImageProcessor, 30),
        (transformers.ConditionalDetrImageProcessor, 100),
        (transformers.DeformableDetrImageProcessor, 100),
    ],
)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5])
def test_processors_choose_their_own_way(kind: Any, most: int | None, threshold: float) -> None:
    """Those of its own postprocessing, for logits of any kind and images of any size."""
    chance = np.random.default_rng(3)
    logits = chance.normal(0, 2, (3, 30, 5)).astype(np.float32)
    boxes = chance.uniform(0, 1, (3, 30, 4)).astype(np.float32)
    sizes = np.array([[480, 640], [33, 1], [4001, 2999]], np.int32)
    names = ["cat", "dög", "N/A", "🚗", "tree"]
    settings = {"logits": "logits", "boxes": "boxes", "sizes": "sizes", "labels": names, "most": most}
    step = ObjectsStep(settings | {"threshold": threshold}, Path())

    (answer,) = step.answer([{"logits": logits, "boxes": boxes, "sizes": sizes}])

    output: Any = type("Output", (), {"logits": torch.from_numpy(logits), "pred_boxes": torch.from_numpy(boxes)})
    owed = kind().post_process_object_detection(output, threshold, torch.from_numpy(sizes))
    assert isinstance(answer, dict)
    for row, expected in zip(answer["objects"].reshape(-1), owed, strict=True):
        objects = json.loads(row)
        assert [names.index(each["label"]) for each in objects] == expected["labels"].tolist()
        require_near([each["score"] for each in objects], expected["scores"].numpy(), atol=1e-6)
        assert [[*each["box"].values()] for each in objects] == expected["boxes"].int().tolist()


def test_boxes_fit_image_as_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is turned by its orientation has the height and width that it is shown in."""
    served = serve("detr", tmp_path, monkeypatch)
    values = run_parts(served.draft.before, served.folder, served.draft.questions["turned"])
    assert values["image_sizes"].tolist() == [[400, 300]]
    assert values["image_sizes"].dtype == np.int32


def test_padding_is_masked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mask is the processor's own, and no pixel beyond it is anything but zero."""
    served = serve("padded detr", tmp_path, monkeypatch)
    values = run_parts(served.draft.before, served.folder, served.draft.questions["batch"])
    pixels, mask = np.asarray(values["pixel_values"], np.float32), np.asarray(values["pixel_mask"], np.int64)
    assert values["pixel_mask"].dtype == np.int64
    assert mask.sum(axis=(1, 2)).tolist() == [96 * 30, 54 * 96, 64 * 85]
    assert not (pixels * (1 - mask[:, None])).any()


def test_mixed_sizes_name_helpful_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A usual DETR pads to the largest of a batch; one size for all is a line in its processor's file."""
    processor = transformers.DetrImageProcessor()
    load_by_pillow(monkeypatch, processor)
    folder = detr(tmp_path / "model", processor)
    live = load(folder)
    with pytest.raises(SourceError, match="makes images of different sizes") as raised:
        plan_images(live, folder, PipelineOptions(), graph(live), scheme="hf", task="", trust_remote_code=False)
    assert 'pad_size: {"height": 1333, "width": 1333}' in raised.value.remedy


def test_foreign_detector_gives_tensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whose postprocessing is not known here; and its mask is made for it all the same."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OwlViTForObjectDetection"]}))
    assert image_output("hf", tmp_path, "") == "objects"
    assert image_output("hf", tmp_path, "object-detection") == "objects"
    served = serve("padded detr", tmp_path / "tensors", monkeypatch, output="tensors")
    request = served.draft.questions["batch"]
    require_near(served.answer(request)["pred_boxes"], served.draft.ask(request)["pred_boxes"], atol=1e-4)
    size = {"size": {"height": 96, "width": 96}}
    monkeypatch.setitem(MODELS, "other", (yolos, transformers.ViTImageProcessorPil, size))
    with pytest.raises(UsageError, match="needs logits and pred_boxes"):
        serve("other", tmp_path / "other", monkeypatch)


def test_dali_refused_where_boxes_need_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And where images are padded, before anything is made with it."""
    (first,) = serve("padded detr", tmp_path, monkeypatch).draft.before
    with pytest.raises(EngineError, match=r"does not fill images up .*; nor make a mask .*; nor say how large"):
        recipe_from_settings(first.settings)


def objects(score: float = 0.9, label: str = "cat", xmin: int = 3) -> dict[str, Any]:
    """One row with one object."""
    entries = [{"label": label, "score": score, "box": {"xmin": xmin, "ymin": 2, "xmax": 9, "ymax": 8}}]
    return {"objects": column(json.dumps(entries).encode())}


def test_equal_scores_change_places() -> None:
    """Others do not, and none may be there twice for another one."""
    first, second, third = (
        json.loads(objects(score, label)["objects"][0, 0])
        for score, label in ((0.9, "cat"), (0.900001, "dog"), (0.7, "cat"))
    )

    def rows(*lists: Any) -> dict[str, Any]:
        return {"objects": column(json.dumps([entry for each in lists for entry in each]).encode())}

    assert compare("one", rows(first, second), rows(second, first), LIMIT).same
    assert not compare("one", rows(first, third), rows(third, first), LIMIT).same
    assert not compare("one", rows(first, second), rows(first, first), LIMIT).same


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        (objects(0.900001), True),
        (objects(xmin=4), True),
        (objects(xmin=5), False),
        (objects(0.8), False),
        (objects(label="dog"), False),
        ({"objects": column(b"[]")}, False),
    ],
)
def test_objects_agree_within_rounding(answer: dict[str, Any], same: bool) -> None:
    """A box may be one pixel off, where its side is all but a whole one."""
    assert compare("one", objects(), answer, LIMIT).same is same
