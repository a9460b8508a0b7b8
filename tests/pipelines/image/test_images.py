"""The part for images makes what timm's transforms and transformers' processors make of the same files."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from transformers.image_utils import load_image

from plansmith.errors import SourceError
from plansmith.pipelines.image.preprocessing import (
    EQUAL,
    TENSORS,
    Agreement,
    ImageRecipe,
    recipe_from_transform,
    recipe_of,
)

from ...support.pipelines.images import ask_part, encoded, files_of_all_kinds, levels, photographs, shapes

KINDS = dict(files_of_all_kinds())

USUAL = {"input_size": (3, 224, 224), "interpolation": "bicubic", "crop_pct": 0.875}
TRANSFORMS: dict[str, dict[str, Any]] = {
    "usual": USUAL,
    "bilinear": {**USUAL, "interpolation": "bilinear"},
    "lanczos": {**USUAL, "interpolation": "lanczos"},
    "whole": {**USUAL, "crop_pct": 1.0},
    "odd crop": {**USUAL, "input_size": (3, 225, 225), "crop_pct": 0.9},
    "squash": {**USUAL, "crop_mode": "squash", "crop_pct": 0.95},
    "border": {**USUAL, "crop_mode": "border", "crop_pct": 0.9},
    "border of everything": {**USUAL, "crop_mode": "border", "crop_pct": 1.0},
    "not square": {**USUAL, "input_size": (3, 160, 256)},
    "half and half": {**USUAL, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "crop_pct": 0.9},
    "grey": {**USUAL, "input_size": (1, 96, 96), "mean": (0.45,), "std": (0.22,)},
}


def _transform(name: str) -> tuple[Any, ImageRecipe]:
    transform = timm.data.create_transform(**TRANSFORMS[name], is_training=False)
    return transform, recipe_from_transform(transform, TRANSFORMS[name]["input_size"][0], upright=False)


def _by_timm(transform: Any, recipe: ImageRecipe, file: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of transparent palettes
        image = Image.open(BytesIO(file)).convert(recipe.mode)
    return transform(image)[None].numpy()


def _require_equal(ours: Any, own: Any, recipe: ImageRecipe, agreement: Agreement = EQUAL) -> None:
    apart = levels(ours, own, recipe)
    assert apart.mean() <= agreement.mean
    assert apart.max() <= agreement.largest


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMS)
def test_photograph_matches_timm_transform(name: str) -> None:
    """A photograph becomes what timm's transform makes."""
    transform, recipe = _transform(name)
    for image in photographs().values():
        for file in (encoded(image, "JPEG", quality=87), encoded(image, "PNG")):
            _require_equal(ask_part(recipe, [file]), _by_timm(transform, recipe, file), recipe)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_odd_shapes_round_like_timm(name: str) -> None:
    """Odd shapes round as timm's transform rounds."""
    transform, recipe = _transform(name)
    for image in shapes().values():
        file = encoded(image, "PNG")
        _require_equal(ask_part(recipe, [file]), _by_timm(transform, recipe, file), recipe)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["usual", "border", "grey"])
def test_modes_read_like_timm_data_sets(name: str, kind: str) -> None:
    """Every mode and format is read as timm's data sets read it."""
    transform, recipe = _transform(name)
    _require_equal(ask_part(recipe, [KINDS[kind]]), _by_timm(transform, recipe, KINDS[kind]), recipe)


def test_random_transform_refused_by_names() -> None:
    """A transform of random steps is refused by their names."""
    transform = timm.data.create_transform(224, is_training=True)

    with pytest.raises(SourceError, match="RandomResizedCrop"):
        recipe_from_transform(transform, 3, upright=False)


def test_channel_mismatch_refused() -> None:
    """A transform for other channels than it normalises is refused."""
    transform = timm.data.create_transform((1, 96, 96), is_training=False)

    with pytest.raises(SourceError, match="normalises 3 channels of images that have 1"):
        recipe_from_transform(transform, 1, upright=False)


PROCESSORS: dict[str, dict[str, Any]] = {
    "BeitImageProcessor": {},
    "BitImageProcessor": {"size": {"shortest_edge": 256}},
    "CLIPImageProcessor": {},
    "ConvNextImageProcessor": {"size": {"shortest_edge": 224}},
    "ConvNextImageProcessor, whole": {"size": {"shortest_edge": 384}},
    "DeiTImageProcessor": {},
    "DetrImageProcessor, one size": {"size": {"height": 96, "width": 130}},
    "DetrImageProcessor, padded": {
        "size": {"shortest_edge": 96, "longest_edge": 131},
        "pad_size": {"height": 131, "width": 140},
    },
    "EfficientNetImageProcessor": {},
    "EfficientNetImageProcessor, offset": {"rescale_offset": True, "rescale_factor": 1 / 127.5, "include_top": False},
    "LevitImageProcessor": {},
    "MobileNetV2ImageProcessor": {},
    "MobileViTImageProcessor": {},
    "PoolFormerImageProcessor": {},
    "PvtImageProcessor": {},
    "RTDetrImageProcessor": {"size": {"height": 96, "width": 96}},
    "SegformerImageProcessor": {},
    "SiglipImageProcessor": {"resample": 3},
    "ViTImageProcessor": {},
    "ViTImageProcessor, odd crop": {"do_center_crop": True, "size": {"height": 250, "width": 301}, "crop_size": 225},
    "ViTImageProcessor, crop beyond": {"do_center_crop": True, "size": {"height": 99, "width": 300}, "crop_size": 224},
    "ViTImageProcessor, plain": {"do_normalize": False},
    "YolosImageProcessor, padded": {
        "size": {"shortest_edge": 96, "longest_edge": 144},
        "pad_size": {"height": 144, "width": 144},
    },
    "ViTImageProcessor, levels": {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [120, 127.5, 130]},
}
FORMS = [*PROCESSORS, *(name.replace("Processor", "ProcessorPil") for name in PROCESSORS), "DINOv3ViTImageProcessor"]


def _processor(form: str) -> Any:
    kind = getattr(transformers, form.partition(",")[0])
    return kind(**PROCESSORS.get(form.replace("ProcessorPil", "Processor"), {}))


def _by_transformers(processor: Any, file: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of transparent palettes
        image = load_image(Image.open(BytesIO(file)))
    return processor(images=image, return_tensors="pt")["pixel_values"].to(torch.float32).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_photograph_matches_processor(form: str) -> None:
    """A photograph becomes what the processor makes."""
    processor = _processor(form)
    recipe = recipe_of(processor)
    for image in (*photographs().values(), shapes()["225x224"], shapes()["977x131"], shapes()["3x5"]):
        file = encoded(image, "PNG")
        _require_equal(ask_part(recipe, [file]), _by_transformers(processor, file), recipe, recipe.agreement)
    assert (recipe.agreement == EQUAL) == form.partition(",")[0].endswith("Pil")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["CLIPImageProcessor", "CLIPImageProcessorPil"])
def test_modes_read_like_transformers(form: str, kind: str) -> None:
    """Every mode and format is read as Transformers pipelines read it."""
    processor = _processor(form)
    recipe = recipe_of(processor)
    own = _by_transformers(processor, KINDS[kind])
    _require_equal(ask_part(recipe, [KINDS[kind]]), own, recipe, recipe.agreement)


@pytest.mark.parametrize("resample", [0, 1, 2, 3, 4, 5])
def test_pillow_filters_match_processor(resample: int) -> None:
    """Each filter of Pillow is the processor's."""
    processor = transformers.ViTImageProcessorPil(resample=resample)
    recipe = recipe_of(processor)
    file = encoded(photographs()["china"], "PNG")
    _require_equal(ask_part(recipe, [file]), _by_transformers(processor, file), recipe)


@pytest.mark.slow
def test_torchvision_difference_is_bounded() -> None:
    """On photographs; `TENSORS` says so, and that bilinear resizing is never more than two levels apart."""
    for resample in (1, 2, 3):
        processor = transformers.CLIPImageProcessor(resample=resample)
        recipe = recipe_of(processor)
        assert recipe.agreement is TENSORS
        for image in photographs().values():
            file = encoded(image, "PNG")
            apart = levels(ask_part(recipe, [file]), _by_transformers(processor, file), recipe)
            assert 0 < apart.mean() <= 0.13
            assert resample != 2 or apart.max() < 2.01


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        ("Pix2StructImageProcessor", "has its own preprocess"),
        ("DetrImageProcessor", "makes images of different sizes"),
        ("PI0ImageProcessor", "resizes to max_height 224, max_width 224"),
        ("VivitImageProcessor", "is of no kind that transformers describes by attributes"),
    ],
)
def test_overreaching_processor_refused_by_name(processor: str, words: str) -> None:
    """A processor that does more is refused by its name."""
    with pytest.raises(SourceError, match=f"{processor} {words}"):
        recipe_of(getattr(transformers, processor)())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"do_resize": False}, "makes images of different sizes"),
        ({"size": {"shortest_edge": 224}}, "makes images of different sizes"),
        ({"size": {"shortest_edge": 224, "longest_edge": 300}}, "resizes to longest_edge 300, shortest_edge 224"),
        ({"resample": 0}, "takes the nearest pixels as torchvision does"),
        ({"do_pad": True, "pad_size": {"height": 300, "width": 300}}, "pads to height 300, width 300"),
    ],
)
def test_unknown_settings_refused_by_names(settings: dict[str, Any], words: str) -> None:
    """Settings that the part does not have are refused by their names."""
    with pytest.raises(SourceError, match=words):
        recipe_of(transformers.ViTImageProcessor(**settings))


def test_custom_processor_refused() -> None:
    """A processor of somebody's own class is refused where it does more."""

    class ConvNextImageProcessor(transformers.ViTImageProcessor):
        def convert_to_rgb(self, image: Any, _: Any = None) -> Any:
            return image.flip(0)

    with pytest.raises(SourceError, match="ConvNextImageProcessor has its own convert_to_rgb"):
        recipe_of(ConvNextImageProcessor())


def test_tensor_has_model_type_and_rows() -> None:
    """The tensor has the model's type and a row for each image."""
    _, recipe = _transform("usual")
    files = [encoded(image, "JPEG") for image in photographs().values()]

    together = ask_part(recipe, files, "float16")

    assert together.dtype == np.float16
    assert together.shape == (len(files), 3, 224, 224)
    for row, file in enumerate(files):
        assert np.array_equal(together[row], ask_part(recipe, [file], "float16")[0])
