"""Samples become what the model takes: by its own tokenizer or transform, or as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import CLIPImageProcessor

from plansmith.compilers.export.loading import plan_graph
from plansmith.data.labels import Span
from plansmith.data.sample import Sample, make_sample
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import AxisRange
from plansmith.sources.dynamic_axes import with_tied
from plansmith.sources.loaded_model import InputPlan

from ..support.models import graphs
from ..support.models.encoders import load_live, save_bert, save_timm, save_vit
from .test_readers import save_image

BATCH = AxisRange(min=1, opt=8, max=32)
AXES = {"batch": BATCH, "sequence": AxisRange(min=4, opt=8, max=10)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> InputPlan:
    return load_live(save_bert(tmp_path_factory.mktemp("bert") / "model", "Model")).inputs


@pytest.fixture(scope="module")
def left_plan(tmp_path_factory: pytest.TempPathFactory) -> InputPlan:
    folder = tmp_path_factory.mktemp("left") / "model"
    return load_live(save_bert(folder, "Model", padding_side="left")).inputs


def texts(*values: Any, labels: tuple[Any, ...] = ()) -> list[Sample]:
    rows = [dict(zip(("text", "text_pair"), v, strict=False)) if isinstance(v, tuple) else {"text": v} for v in values]
    return [make_sample(i, row, labels[i] if labels else None) for i, row in enumerate(rows)]


def test_texts_padded_to_longest(bert: InputPlan) -> None:
    """Texts are filled up to the longest of their batch."""
    feed = bert.encode(texts("the cat sat on a mat", "the dog"), AXES, "").feed
    assert feed["input_ids"].tolist() == [[2, 5, 6, 7, 8, 9, 10, 3], [2, 5, 11, 3, 0, 0, 0, 0]]
    assert feed["attention_mask"].sum(axis=1).tolist() == [8, 4]
    assert {a.dtype.name for a in feed.values()} == {"int64"}


def test_texts_fill_axis_exactly(bert: InputPlan) -> None:
    """Texts are no longer than the axis allows and no shorter."""
    assert bert.encode(texts("cat " * 40), AXES, "").feed["input_ids"].tolist() == [[2, *[6] * 8, 3]]
    assert bert.encode(texts(""), AXES, "").feed["input_ids"].tolist() == [[2, 3, 0, 0]]
    short = {"batch": BATCH, "sequence": AxisRange(min=3, opt=3, max=3)}
    assert bert.encode(texts("the cat sat"), short, "").feed["input_ids"].tolist() == [[2, 5, 3]]


def test_pairs_are_one_sequence(bert: InputPlan) -> None:
    """Pairs are one sequence with two segments."""
    feed = bert.encode(texts(("who sat", "the cat")), AXES, "").feed
    assert feed["input_ids"].tolist() == [[2, 15, 7, 3, 5, 6, 3]]
    assert feed["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]


def test_tags_at_first_token(bert: InputPlan) -> None:
    """Tags stand at the first token of their word."""
    encoded = bert.encode(texts(["the", "cats", "sat"], ["dog"], labels=([1, 2, 0], [2])), AXES, "tags")
    assert encoded.feed["input_ids"].tolist() == [[2, 5, 6, 17, 7, 3], [2, 11, 3, 0, 0, 0]]
    assert encoded.labels["tags"].tolist() == [[-100, 1, 2, -100, 0, -100], [-100, 2, -100, -100, -100, -100]]


def test_unfitting_tags_refused(bert: InputPlan) -> None:
    """Tags that do not fit their words are refused."""
    with pytest.raises(UsageError, match="row 0 has 1 tags for 2 words"):
        bert.encode(texts(["the", "cat"], labels=([1],)), AXES, "tags")


def test_answers_become_tokens(bert: InputPlan, left_plan: InputPlan) -> None:
    """Answers become tokens on either side of the padding."""
    samples = texts(
        ("who sat ?", "the cat sat"), ("who", "cat"), ("who", "cat"), labels=(Span(4, 11), Span(0, 3), Span(0, 0))
    )
    labels = bert.encode(samples, AXES, "answer").labels
    assert (labels["start"].tolist(), labels["end"].tolist()) == ([6, 3, 0], [7, 3, 0])
    encoded = left_plan.encode(samples, AXES, "answer")
    assert encoded.feed["input_ids"][1].tolist() == [0, 0, 0, 0, 2, 15, 3, 6, 3]
    assert encoded.feed["input_ids"][1, encoded.labels["start"][1]] == 6


def test_cut_answer_does_not_count(bert: InputPlan) -> None:
    """An answer that was cut off does not count."""
    samples = texts(("who", "the " * 20 + "cat"), labels=(Span(80, 83),))
    assert bert.encode(samples, AXES, "answer").labels["start"].tolist() == [-100]


def test_given_ids_get_mask(bert: InputPlan) -> None:
    """IDs that are given are taken, and their mask is made."""

    def samples(dtype: str) -> list[Sample]:
        rows = [np.array([2, 5, 6, 3, 3]), np.array([2, 3])]
        return [make_sample(i, {"input_ids": r, "token_type_ids": (r * 0).astype(dtype)}) for i, r in enumerate(rows)]

    with pytest.raises(UsageError, match="row 0: token_type_ids is float64"):
        bert.encode(samples("float64"), AXES, "")
    feed = bert.encode(samples("int64"), AXES, "").feed
    assert feed["input_ids"].tolist() == [[2, 5, 6, 3, 3], [2, 3, 0, 0, 0]]
    assert feed["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


def test_images_use_model_transform(tmp_path: Path) -> None:
    """Images go through the model's own transform."""
    live = load_live(save_timm(tmp_path / "model", classes=("a", "b", "c")), "timm")
    path = save_image(tmp_path / "a.png", 255)
    samples = [make_sample(0, {"image": path}), make_sample(1, {"image": np.zeros((8, 8), np.uint8)})]
    feed = live.inputs.encode(samples, {"batch": BATCH}, "").feed
    assert feed["pixel_values"].shape == (2, 1, 32, 32)
    assert feed["pixel_values"][:, 0, 5, 5].tolist() == [1, -1]
    assert live.ask(live.inputs.make({"batch": 2}))["logits"].shape == (2, 3)
    path.write_bytes(b"broken")
    with pytest.raises(SourceError, match=r"a\.png is no image"):
        live.inputs.encode(samples, {"batch": BATCH}, "")


def test_images_use_transformers_processor(tmp_path: Path) -> None:
    """Images go through the processor of a Transformers model."""
    plan = load_live(save_vit(tmp_path / "model")).inputs
    samples = [make_sample(0, {"image": save_image(tmp_path / "a.png", 255)}), make_sample(1, {"image": b"no image"})]
    feed = plan.encode(samples[:1], plan.axes, "").feed["pixel_values"]
    assert (feed.shape, feed.dtype.name, feed.max()) == ((1, 3, 16, 16), "float32", 1)
    with pytest.raises(SourceError, match="the image of row 1 is no image"):
        plan.encode(samples, plan.axes, "")


def test_uneven_image_refused(tmp_path: Path) -> None:
    """A processor may keep the shape of images, which fits both ranges; the model would refuse it in its own words."""
    folder = save_vit(tmp_path / "model")
    CLIPImageProcessor(size={"shortest_edge": 16}, do_center_crop=False).save_pretrained(folder)
    plan = load_live(folder).inputs
    tied = with_tied(plan, {"width": "height"})
    axes = {"batch": BATCH, "height": AxisRange(min=16, opt=16, max=64)}
    square, wide = (np.zeros((16, width, 3), np.uint8) for width in (16, 22))
    assert tied.encode([make_sample(0, {"image": square})], axes, "").feed["pixel_values"].shape == (1, 3, 16, 16)
    with pytest.raises(SourceError) as caught:
        tied.encode([make_sample(3, {"image": wide})], axes, "")
    assert "the image of row 3 becomes [3, 16, 22], and the model takes [3, height, height]" in caught.value.message
    assert "crops" in (caught.value.remedy or "")


@pytest.fixture
def product(tmp_path: Path) -> InputPlan:
    text = "net (float[batch, 3, width] x) => (float[batch, 3, width] y) { y = Relu (x) }"
    return plan_graph(graphs.save(text, tmp_path), {}, ())[1]


def test_arrays_reach_onnx_unchanged(product: InputPlan) -> None:
    """Arrays go to an ONNX file as they are."""
    axes = {"batch": BATCH, "width": AxisRange(min=4, opt=8, max=8)}
    samples = [make_sample(i, {"x": np.full((3, 5 + i), i, np.float64)}) for i in range(2)]
    feed = product.encode(samples, axes, "").feed["x"]
    assert (feed.shape, feed.dtype.name) == ((2, 3, 6), "float32")
    assert feed[0, 0].tolist() == [0] * 6
    assert feed[1, 0].tolist() == [1] * 6


@pytest.mark.parametrize(
    ("shape", "says"),
    [((2, 5), r"x is float64 \[2, 5\], and the input takes \[3, width\]"), ((3, 9), "takes at most 8 for 'width'")],
)
def test_unfitting_arrays_refused(product: InputPlan, shape: tuple[int, ...], says: str) -> None:
    """Arrays of another form are refused."""
    axes = {"batch": BATCH, "width": AxisRange(min=4, opt=8, max=8)}
    with pytest.raises(UsageError, match=says):
        product.encode([make_sample(0, {"x": np.zeros(shape)})], axes, "")
