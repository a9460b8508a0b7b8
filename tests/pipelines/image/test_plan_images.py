"""A pipeline around a model that reads images: from a file's bytes to what the source's own library answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.draft import run_parts, write_part
from plansmith.pipelines.image import reference
from plansmith.pipelines.image.kinds import IMAGES
from plansmith.pipelines.image.pipeline import IMAGE, plan_images
from plansmith.pipelines.image.reference import bytes_array, image_questions
from plansmith.pipelines.served.requests import Refusal
from plansmith.records.model import BATCH, Component, OnnxModel, Precision, ReferenceSet, Tensor
from plansmith.sources import timm as timm_models
from plansmith.sources.huggingface.processors import Preprocessors
from plansmith.sources.loaded_model import LoadedModel, enliven

from ...support.models.architectures import IMAGE as SMALL
from ...support.models.architectures import load, save
from ...support.pipelines.images import encoded, files_of_all_kinds, photographs
from ...support.pipelines.texts import Served

RESNET: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 12],
    "depths": [1, 1],
    "layer_type": "basic",
    "num_labels": 6,
}
CLASSES = {0: "cat", 1: "dög", 2: "a bird, of some kind", 3: "🐟", 4: "plane"}


pytestmark = pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # Pillow's, in the libraries


def load_by_pillow(monkeypatch: pytest.MonkeyPatch, processor: Any) -> None:
    """Let a directory's processor be loaded as it is where there is no torchvision."""
    monkeypatch.setattr(reference, "read_preprocessors", lambda *_, **__: Preprocessors(images=processor))


def save_timm(folder: Path, *, classes: int = 9, **changed: Any) -> Path:
    """A ResNet of timm with lively random weights; `changed` in its configuration."""
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=classes)
    enliven(model, 0)
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["pretrained_cfg"] |= {"input_size": [3, 64, 64], "num_classes": classes} | changed
    file.write_text(json.dumps(config))
    return folder


def save_vit(folder: Path, processor: Any = None, **fields: Any) -> Path:
    """A ViT classifier and its processor."""
    image_processor = processor or transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    return save(
        folder, "ViTForImageClassification", "ViTConfig", image_processor, **SMALL | {"id2label": CLASSES} | fields
    )


def graph(live: LoadedModel) -> OnnxModel:
    """The record of a graph with a model's interface, images in their usual size."""
    sizes = {axis: 2 if axis == BATCH else size_range.opt for axis, size_range in live.inputs.axes.items()}
    answer = live.ask(live.inputs.make(sizes))
    outputs = [Tensor(name=n, dtype=str(a.dtype), dims=(BATCH, *a.shape[1:])) for n, a in answer.items()]
    component = Component(
        file="model.onnx",
        external_files=(),
        inputs=live.inputs.tensors,
        outputs=tuple(outputs),
        opset=20,
        ir_version=10,
    )
    return OnnxModel(
        components={"model": component},
        axes=live.inputs.axes,
        mask_input=None,
        exporter="torchscript",
        attempts=(),
        precision=Precision.FP32,
        reference=ReferenceSet(runtime="PyTorch", data="", cases=()),
    )


def serve(folder: Path, out: Path, scheme: Any = "hf", *, task: str = "", **options: Any) -> Served:
    """Plan and write the pipeline around a model."""
    live = timm_models.load(folder, task=task) if scheme == "timm" else load(folder, task=task)
    settings = PipelineOptions.model_validate({"input": "image"} | options)
    draft = plan_images(live, folder, settings, graph(live), scheme=scheme, task=task, trust_remote_code=False)
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, out)
    return Served(live, draft, out)


def require_near(ours: Any, own: Any, *, atol: float) -> None:
    """See that two arrays are equal but for this much."""
    np.testing.assert_allclose(ours, own, rtol=1e-6, atol=atol)


def compare(served: Served, files: list[bytes], *, score: float) -> None:
    """See that files in one request get the labels and scores of the source's library."""
    request = {IMAGE: bytes_array(files)}
    answer, owed = dict(served.answer(request)), dict(served.draft.ask(request))
    assert answer["label"].tolist() == owed["label"].tolist()
    assert owed["score"].dtype == answer["score"].dtype == np.float32
    require_near(answer["score"], owed["score"], atol=score)


def real_files() -> list[bytes]:
    """Every mode and format of a photograph, and all photographs."""
    return [file for _, file in files_of_all_kinds()] + [
        encoded(photograph, "JPEG") for photograph in photographs().values()
    ]


@pytest.mark.slow
def test_timm_classifier_matches_pytorch(tmp_path: Path) -> None:
    """A classifier of timm answers as timm's transform and PyTorch do."""
    served = serve(save_timm(tmp_path / "model"), tmp_path / "out", "timm")

    compare(served, real_files(), score=1e-6)

    assert served.draft.output == "labels"
    assert served.draft.bounds == {}
    assert served.draft.inputs == (Tensor(name="image", dtype="string", dims=("batch", 1)),)
    assert served.draft.outputs == (
        Tensor(name="label", dtype="string", dims=("batch", 5)),
        Tensor(name="score", dtype="float32", dims=("batch", 5)),
    )


@pytest.mark.slow
def test_own_questions_match_source(tmp_path: Path) -> None:
    """The questions of plansmith's own are answered as the source answers them."""
    folders = {"timm": save_timm(tmp_path / "timm"), "hf": save_vit(tmp_path / "hf")}
    for scheme, folder in folders.items():
        served = serve(folder, tmp_path / f"{scheme}-out", scheme)
        assert {"jpeg", "png", "batch", "grey", "transparent", "tiny", "turned"} <= served.draft.questions.keys()
        for request in served.draft.questions.values():
            answer, owed = served.answer(request), served.draft.ask(request)
            assert answer["label"].tolist() == owed["label"].tolist()
            require_near(answer["score"], owed["score"], atol=1e-6 if scheme == "timm" else 1e-2)


def test_questions_are_stable() -> None:
    """Questions are the same every time and fit the batch."""
    first, again, alone = (image_questions("image", max_batch=batch) for batch in (8, 8, 1))

    assert {name: feed["image"].tolist() for name, feed in first.items()} == {
        name: feed["image"].tolist() for name, feed in again.items()
    }
    assert max(len(feed["image"]) for feed in first.values()) == 3
    assert {len(feed["image"]) for feed in alone.values()} == {1}


@pytest.mark.slow
def test_imagenet_classes_have_names(tmp_path: Path) -> None:
    """Weights that were trained on ImageNet, as their tag says, have its classes; a directory's own names go first."""
    own = [f"kind {number}" for number in range(1000)]
    tags: dict[str, tuple[dict[str, Any], str]] = {
        "a1_in1k": ({}, "tench, Tinca tinca"),
        "in21k_ft_flowers": ({}, "0"),
        "ra_in1k": ({"label_names": own}, "kind 0"),
    }
    for tag, (fields, first) in tags.items():
        folder = save_timm(tmp_path / tag, classes=1000, tag=tag, **fields)
        part = serve(folder, tmp_path / f"{tag}-out", "timm").draft.after[0]
        assert part.settings["labels"][0] == first
        assert len(part.settings["labels"]) == 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"), [(None, 5), ("multi_label_classification", 5), ("regression", 5), (None, 1)]
)
def test_transformers_classifier_matches_pipeline(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int, tmp_path: Path
) -> None:
    """With a processor of Pillow's, so that nothing but rounding is between them."""
    processor = transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})
    load_by_pillow(monkeypatch, processor)
    names = {number: name for number, name in CLASSES.items() if number < count}
    folder = save_vit(tmp_path / "model", processor, problem_type=kind, id2label=names)
    live = load(folder)
    draft = plan_images(
        live, folder, PipelineOptions(top_k=3), graph(live), scheme="hf", task="", trust_remote_code=False
    )
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, tmp_path / "out")

    compare(Served(live, draft, tmp_path / "out"), real_files(), score=2e-6)


@pytest.mark.slow
def test_draft_tells_torchvision_bound(tmp_path: Path) -> None:
    """The source's own answer is that of torchvision; the part's tensors are within the bound of it."""
    served = serve(save_vit(tmp_path / "model"), tmp_path / "out")
    automatic: Any = transformers.AutoImageProcessor
    own = automatic.from_pretrained(tmp_path / "model")
    assert own.backend == "torchvision"
    (bound,) = served.draft.bounds.values()
    assert served.draft.bounds.keys() == {"pixel_values"}
    assert bound == pytest.approx(0.2 / 255 / 0.5)

    means = []
    for image in photographs().values():
        result = run_parts(served.draft.before, served.folder, {IMAGE: bytes_array([encoded(image, "PNG")])})
        apart = np.abs(result["pixel_values"] - own(images=image, return_tensors="np")["pixel_values"])
        means.append(float(apart.mean()))
    assert 0 < max(means) < bound
    compare(served, [encoded(image, "PNG") for image in photographs().values()], score=1e-2)


@pytest.mark.slow
def test_embedding_is_pooled_output(tmp_path: Path) -> None:
    """An embedding is the model's own pooled output."""
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    folders = {
        "timm": (save_timm(tmp_path / "timm"), "image-feature-extraction", "features", ("batch", 512)),
        "hf": (save(tmp_path / "vit", "ViTModel", "ViTConfig", processor, **SMALL), "", "pooler_output", ("batch", 32)),
    }
    files = [encoded(image, "JPEG") for image in photographs().values()]
    for scheme, (folder, task, name, dims) in folders.items():
        served = serve(folder, tmp_path / f"{scheme}-out", scheme, task=task)
        request = {IMAGE: bytes_array(files)}
        assert served.draft.output == "embedding"
        assert served.draft.after == ()
        assert served.draft.outputs == (Tensor(name=name, dtype="float32", dims=dims),)
        require_near(served.answer(request)[name], served.draft.ask(request)[name], atol=1e-4)


@pytest.mark.slow
def test_outputs_given_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All outputs of a model are given where that is asked for."""
    processor = transformers.ConvNextImageProcessorPil(size={"shortest_edge": 64})
    load_by_pillow(monkeypatch, processor)
    folder = save(tmp_path / "model", "ResNetModel", "ResNetConfig", processor, **RESNET)
    files = [encoded(image, "PNG") for image in photographs().values()]

    served = serve(folder, tmp_path / "out", output="tensors")

    request = {IMAGE: bytes_array(files)}
    answer, owed = served.answer(request), served.draft.ask(request)
    assert answer.keys() == owed.keys() == {"last_hidden_state", "pooler_output"}
    for name, array in owed.items():
        require_near(answer[name], array, atol=1e-4)


def test_bad_image_refused_alone(tmp_path: Path) -> None:
    """A bad image is refused and the others of its execution are answered."""
    served = serve(save_timm(tmp_path / "model"), tmp_path / "out", "timm")
    good = {IMAGE: bytes_array([encoded(photographs()["flower"], "JPEG")])}

    first, refused, last = served.answers([good, {IMAGE: bytes_array([b"no image"])}, good])

    assert isinstance(refused, Refusal)
    assert refused.message.startswith("image: the image in row 0 is refused: it is no image of a format that is read")
    assert not isinstance(first, Refusal)
    assert not isinstance(last, Refusal)
    assert first["label"].tolist() == last["label"].tolist()


def test_part_needs_numpy_and_pillow_only(tmp_path: Path) -> None:
    """From its folder alone: no plansmith, no PyTorch, no transformers."""
    served = serve(save_timm(tmp_path / "model"), tmp_path / "out", "timm")
    folder = tmp_path / "out" / "images"
    (tmp_path / "flower.jpg").write_bytes(encoded(photographs()["flower"], "JPEG"))
    program = f"""
import json, sys
sys.path.insert(0, {str(folder)!r})
import numpy as np
from pathlib import Path
from plansmith_served.images import ImagesStep
step = ImagesStep(json.loads(Path({str(folder)!r}, "settings.json").read_text()), Path({str(folder)!r}))
file = np.empty((1, 1), object)
file[0, 0] = Path({str(tmp_path)!r}, "flower.jpg").read_bytes()
(answer,) = step.answer([{{"image": file}}])
np.save({str(tmp_path / "made.npy")!r}, answer["pixel_values"])
print(sorted({{"plansmith", "torch", "torchvision", "transformers", "timm"}} & set(sys.modules)))
"""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", program], env=without, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
    request = {IMAGE: bytes_array([(tmp_path / "flower.jpg").read_bytes()])}
    assert np.array_equal(
        np.load(tmp_path / "made.npy"), run_parts(served.draft.before, served.folder, request)["pixel_values"]
    )
    pinned = (folder / "requirements.txt").read_text().splitlines()
    assert [line.partition("==")[0] for line in pinned] == ["numpy", "pillow"]


def test_mismatched_model_size_refused(tmp_path: Path) -> None:
    """A model of another size than its processor is refused."""
    folder = save_timm(tmp_path / "model")
    live = timm_models.load(folder, task="")
    model = graph(live)
    component = model.components["model"]
    images = Tensor(name="pixel_values", dtype="float32", dims=("batch", 3, 96, 96))
    variant = model.model_copy(update={"components": {"model": component.model_copy(update={"inputs": (images,)})}})

    with pytest.raises(
        SourceError, match=r"images become 3 x 64 x 64, and the model's pixel_values is .batch, 3, 96, 96."
    ):
        plan_images(live, folder, PipelineOptions(), variant, scheme="timm", task="", trust_remote_code=False)


def test_model_beyond_images_refused(tmp_path: Path) -> None:
    """A model that takes more than images is refused."""
    folder = save_timm(tmp_path / "model")
    live = timm_models.load(folder, task="")
    model = graph(live)
    component = model.components["model"]
    more = (*component.inputs, Tensor(name="input_ids", dtype="int64", dims=("batch", "sequence")))
    variant = model.model_copy(update={"components": {"model": component.model_copy(update={"inputs": more})}})

    with pytest.raises(UsageError, match=r"the model takes pixel_values .*, input_ids int64"):
        plan_images(live, folder, PipelineOptions(), variant, scheme="timm", task="", trust_remote_code=False)


def test_contradicting_preprocessing_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a release of transformers that does something new: the part is tried before it is served."""
    from plansmith.pipelines.image import preprocessing

    def off_by_a_pixel(processor: Any) -> Any:
        recipe = preprocessing.recipe_of(processor)
        return replace(recipe, steps=({**recipe.steps[0], "filter": "box"},))

    monkeypatch.setattr(reference, "recipe_of", off_by_a_pixel)
    with pytest.raises(SourceError, match="does more than its settings say"):
        serve(save_vit(tmp_path / "model"), tmp_path / "out")


def test_impossible_pipeline_refused_from_files(tmp_path: Path) -> None:
    """An impossible pipeline is refused from its files alone."""
    vit = save_vit(tmp_path / "vit")
    resnet = save_timm(tmp_path / "timm")
    bare = save(tmp_path / "bare", "ViTForImageClassification", "ViTConfig", **SMALL)
    extractor: Any = transformers.Wav2Vec2FeatureExtractor
    sound = save(tmp_path / "sound", "ViTModel", "ViTConfig", extractor(), **SMALL)
    usual = PipelineOptions(input="image")

    assert IMAGES.refuse("hf", vit, usual, task="") == "labels"
    assert IMAGES.refuse("timm", resnet, usual, task="") == "labels"
    assert IMAGES.refuse("timm", resnet, usual, task="image-feature-extraction") == "embedding"
    assert IMAGES.refuse("hf", vit, PipelineOptions(output="tensors"), task="") == "tensors"
    with pytest.raises(UsageError, match="an ONNX file does not say how images become its input"):
        IMAGES.refuse("onnx", tmp_path, usual, task="")
    for folder in (bare, sound):
        with pytest.raises(SourceError, match="has no image processor"):
            IMAGES.refuse("hf", folder, usual, task="")
    with pytest.raises(UsageError, match=r"pipeline.output is answer, and the model's configuration makes it labels"):
        IMAGES.refuse("hf", vit, PipelineOptions(output="answer"), task="")
