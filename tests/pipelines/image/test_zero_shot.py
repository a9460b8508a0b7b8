"""Texts that come with an image are ranked as transformers' zero-shot image classification ranks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray

from plansmith.config.pipeline import PipelineOptions
from plansmith.config.spec import make_spec
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.agreement import RawLimits, compare, limits_of
from plansmith.pipelines.detect import raw_input, refuse_raw, settled_task
from plansmith.pipelines.draft import run_parts, write_part
from plansmith.pipelines.image.pipeline import IMAGE, plan_images
from plansmith.pipelines.image.reference import bytes_array, open_image
from plansmith.pipelines.image.zero_shot import TEXTS
from plansmith.pipelines.served.requests import Refusal
from plansmith.records.model import Precision, Tensor
from plansmith.records.validation import ValidationReport
from plansmith.sources.huggingface.outputs import SCORES, ZERO_SHOT
from plansmith.validation.comparison import LIMITS, compare_output

from ...support.models.architectures import IMAGE as SMALL
from ...support.models.architectures import load, save
from ...support.models.clip import clip
from ...support.pipelines.images import encoded, photographs
from ...support.pipelines.texts import SIZES, Served, word_piece
from .test_plan_images import graph, load_by_pillow, require_near

LIMIT = RawLimits({}, LIMITS[Precision.FP32].tolerance, 1e-5, exact=True)
LABELS = ("cat", "two dogs, or one", "Grüße aus Zürich", "東京の夜 🌃", "кошка", "A  Cat", "cat", "don't {know}")


def processor() -> Any:
    """Of Pillow, so that only rounding is between it and the part."""
    return transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def chinese_clip(folder: Path, images: Any) -> Path:
    """A Chinese CLIP, whose texts are read by a BERT that needs to know what fills them up."""
    tokenizer = word_piece(model_max_length=40)
    text = SIZES | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    fields = {"text_config": text, "vision_config": SMALL, "projection_dim": 16}

    def lively(model: Any) -> None:
        model.logit_scale.fill_(4.0)

    return save(folder, "ChineseCLIPModel", "ChineseCLIPConfig", tokenizer, images, change=lively, **fields)


def served_by(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Served:
    """Plan and write the pipeline around a model."""
    load_by_pillow(monkeypatch, processor())
    live = load(folder, task=ZERO_SHOT)
    settings = PipelineOptions.model_validate(options)
    draft = plan_images(live, folder, settings, graph(live), scheme="hf", task=ZERO_SHOT, trust_remote_code=False)
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, out)
    return Served(live, draft, out)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A pipeline around a CLIP."""
    return served_by(clip(tmp_path / "model", processor()), tmp_path / "out", monkeypatch)


def rows(*texts: Sequence[str | bytes]) -> NDArray[Any]:
    """The texts of every image, as they travel."""
    array = np.empty((len(texts), len(texts[0])), object)
    for row, listed in enumerate(texts):
        array[row] = [text if isinstance(text, bytes) else text.encode() for text in listed]
    return array


def files(count: int) -> list[bytes]:
    """Photographs, encoded."""
    return [encoded(image, "PNG") for image in list(photographs().values())[:count]]


def request(images: Sequence[bytes], *texts: Sequence[str | bytes]) -> dict[str, NDArray[Any]]:
    return {IMAGE: bytes_array(images), TEXTS: rows(*texts)}


def library(folder: Path) -> Any:
    """The pipeline of transformers, as a person makes it."""
    kind: Any = transformers.ZeroShotImageClassificationPipeline
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return kind(model=model, image_processor=processor(), tokenizer=tokenizer, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [clip, chinese_clip, partial(clip, family="MetaClip2")], ids=["clip", "chinese", "meta"]
)
@pytest.mark.parametrize("template", ["This is a photo of {}.", "{}", "Ein Bild: {}!"])
def test_texts_ranked_like_transformers(
    build: Callable[[Path, Any], Path], template: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One text or many, in any language, twice the same one; several images at once, each with its own."""
    folder = build(tmp_path / "model", processor())
    served = served_by(folder, tmp_path / "out", monkeypatch, hypothesis_template=template)
    own = library(folder)
    images = files(3)

    assert served.draft.output == "zero-shot"
    assert served.draft.bounds == {}
    assert [(t.name, t.dims) for t in served.draft.inputs] == [("image", ("batch", 1)), ("texts", ("batch", "texts"))]
    assert [(t.name, t.dtype, t.dims) for t in served.draft.outputs] == [
        ("label", "string", ("batch", "texts")),
        ("score", "float32", ("batch", "texts")),
    ]
    first = set()
    for count in (1, 2, 5, len(LABELS)):
        texts = [[LABELS[(row + place) % len(LABELS)] for place in range(count)] for row in range(len(images))]
        answer = served.answer(request(images, *texts))
        for row, image in enumerate(images):
            owed = own(open_image(image), candidate_labels=texts[row], hypothesis_template=template)
            assert [text.decode() for text in answer["label"][row]] == [entry["label"] for entry in owed]
            require_near(answer["score"][row], [entry["score"] for entry in owed], atol=1e-5)
            first.add(answer["label"][row, 0])
    assert len(first) > 2


@pytest.mark.slow
def test_questions_answered_like_library(small: Served) -> None:
    """Texts that are too long included: both cut them."""
    counts = set()
    for name, question in small.draft.questions.items():
        counts.add(question[TEXTS].shape[1])
        comparison = compare(name, small.draft.ask(question), small.answer(question), LIMIT)
        assert comparison.same, comparison.failures
    assert counts == {1, 2, 3, 5, 16}


def test_wrong_scale_refused_by_gate(small: Served, tmp_path: Path) -> None:
    """Which leaves the order as it is: of the scores, with what the gate allows the model's own in FP32."""

    def larger(model: Any) -> None:
        model.logit_scale.add_(0.01)

    spoilt = clip(tmp_path / "spoilt", processor(), change=larger)
    wrong = Served(load(spoilt, task=ZERO_SHOT), small.draft, small.folder)
    question = small.draft.questions["batch"]
    values = run_parts(small.draft.before, small.folder, question)
    own, scores = (
        side.live.ask({t.name: values[t.name] for t in side.live.inputs.tensors})[SCORES] for side in (small, wrong)
    )
    tolerance = LIMITS[Precision.FP32].tolerance
    comparison = compare_output("batch", SCORES, own, scores, tolerance)
    assert comparison.failures
    report: Any = ValidationReport.model_construct(
        tolerances={SCORES: tolerance}, comparisons=(comparison,), precision=Precision.FP32
    )
    owed, answer = small.draft.ask(question), wrong.answer(question)
    assert compare("batch", owed, small.answer(question), LIMIT).failures == ()
    assert answer["label"].tolist() == owed["label"].tolist()
    assert "and should have" in compare("batch", owed, answer, limits_of(report)).failures[0]


def test_unrankable_request_refused_alone(small: Served) -> None:
    """With one message; the others of the execution are answered as if they were alone."""
    (image,) = files(1)
    good = request([image], ["cat", "dog"])
    bad = {
        "texts: 0 for each image, and the model takes 1 to 64": request([image], []),
        "texts: 65 for each image, and the model takes 1 to 64": request([image], ["cat"] * 65),
        "texts, row 0, text 1 is empty": request([image], ["cat", ""]),
        "texts, row 1, text 0 is empty": request([image, image], ["cat"], [" \n"]),
        "texts, row 0, text 1: byte 1 is no UTF-8": request([image], ["cat", b"a\xff"]),
        "image: the image in row 0 is refused: it is no image": {**good, IMAGE: bytes_array([b"hello"])},
    }

    *refused, answer = small.answers([*bad.values(), good])

    for prefix, refusal in zip(bad, refused, strict=True):
        assert isinstance(refusal, Refusal)
        assert refusal.message.startswith(prefix)
    assert not isinstance(answer, Refusal)
    assert answer["label"].tolist() == small.answer(good)["label"].tolist()


def test_other_texts_change_no_answer(small: Served) -> None:
    """However many come in one request."""
    images = files(2)
    texts = (["cat", "dog", "кошка"], ["a red car", "fish", "Zürich"])
    whole = small.answer(request(images, *texts))
    for row, (image, own) in enumerate(zip(images, texts, strict=True)):
        alone = small.answer(request([image], own))
        assert whole["label"][row].tolist() == alone["label"][0].tolist()
        require_near(whole["score"][row], alone["score"][0], atol=1e-6)


def test_own_scores_on_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the order of the texts, as the model gives them."""
    folder = clip(tmp_path / "model", processor())
    served = served_by(folder, tmp_path / "out", monkeypatch, output="tensors")
    question = served.draft.questions["batch"]
    assert [tensor.name for tensor in served.draft.outputs] == ["logits_per_image"]
    scores, owed = (result["logits_per_image"] for result in (served.answer(question), served.draft.ask(question)))
    require_near(scores, owed, atol=1e-4)
    assert scores.shape == question[TEXTS].shape


def test_text_rankers_known_by_files(tmp_path: Path) -> None:
    """They are sent images without the spec saying so, and are loaded for that task."""
    folder = clip(tmp_path / "model", processor())
    options = PipelineOptions()
    assert raw_input("hf", folder, options) == "image"
    for task, output, settled in (
        ("", "zero-shot", ZERO_SHOT),
        (ZERO_SHOT, "zero-shot", ZERO_SHOT),
        ("image-feature-extraction", "embedding", "image-feature-extraction"),
    ):
        assert refuse_raw("hf", folder, options, task=task) == output
        assert settled_task("hf", folder, options, task=task) == settled
    assert settled_task("hf", folder, None, task="") == ""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["CLIPForImageClassification"]}))
    assert settled_task("hf", folder, options, task="") == ""
    assert refuse_raw("hf", folder, PipelineOptions(input="image"), task="") == "labels"


def test_model_without_tokenizer_ranks_nothing(tmp_path: Path) -> None:
    """It is refused before anything is loaded."""
    folder = clip(tmp_path / "model", processor())
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(SourceError, match="has no tokenizer for the texts that come with an image"):
        refuse_raw("hf", folder, PipelineOptions(), task="")


@pytest.mark.parametrize("template", ["a photo", "{} and {}", "{0}", "{label}", "{{}}", "{} }"])
def test_template_has_one_text_place(template: str) -> None:
    """Braces that mean more to Python mean nothing here."""
    with pytest.raises(UsageError, match=r"has to hold \{\} once"):
        make_spec({"source": "hf:org/clip", "pipeline": {"hypothesis_template": template}})


def test_model_form_batches_for_task(tmp_path: Path) -> None:
    """Every image has texts of its own, and its scores are those that the model itself gives."""
    import torch

    folder = clip(tmp_path / "model", processor())
    live = load(folder, task=ZERO_SHOT)
    assert live.inputs.tensors[0] == Tensor(name="input_ids", dtype="int64", dims=("batch", "texts", "sequence"))
    assert {axis: live.inputs.axes[axis].max for axis in ("batch", "texts", "sequence")} == {
        "batch": 8,
        "texts": 64,
        "sequence": 40,
    }
    feed = live.inputs.make({"batch": 3, "texts": 4, "sequence": 9, "height": 32, "width": 32})
    (scores,) = live.ask(feed).values()
    model: Any = transformers.CLIPModel.from_pretrained(folder)
    with torch.inference_mode():
        owed = [
            model(input_ids=torch.from_numpy(ids), pixel_values=torch.from_numpy(pixels[None])).logits_per_image[0]
            for ids, pixels in zip(feed["input_ids"], feed["pixel_values"], strict=True)
        ]
    require_near(scores, torch.stack(owed).numpy(), atol=1e-4)
    assert load(folder).output_names[0] == "logits_per_image"
    assert load(folder).inputs.tensors[0].dims == ("batch", "sequence")
