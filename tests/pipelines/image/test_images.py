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
from plansmith.pipelines.image.preprocessing import EQUAL, TENSORS, Agreement, ImageRecipe
from plansmith.pipelines.image.processor_preprocessing import recipe_of
from plansmith.pipelines.image.timm_preprocessing import recipe_from_transform

from ...support.pipelines.images import asked, encoded, files_of_all_kinds, levels, photographs, shapes

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
def test_a_photograph_becomes_what_timms_transform_makes(name: str) -> None:
    transform, recipe = _transform(name)
    for image in photographs().values():
        for file in (encoded(image, "JPEG", quality=87), encoded(image, "PNG")):
            _require_equal(asked(recipe, [file]), _by_timm(transform, recipe, file), recipe)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_odd_shapes_round_as_timms_transform_rounds(name: str) -> None:
    transform, recipe = _transform(name)
    for image in shapes().values():
        file = encoded(image, "PNG")
        _require_equal(asked(recipe, [file]), _by_timm(transform, recipe, file), recipe)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["usual", "border", "grey"])
def test_every_mode_and_format_is_read_as_timms_data_sets_read_it(name: str, kind: str) -> None:
    transform, recipe = _transform(name)
    _require_equal(asked(recipe, [KINDS[kind]]), _by_timm(transform, recipe, KINDS[kind]), recipe)


def test_a_transform_of_random_steps_is_refused_by_their_names() -> None:
    transform = timm.data.create_transform(224, is_training=True)

    with pytest.raises(SourceError, match="RandomResizedCrop"):
        recipe_from_transform(transform, 3, upright=False)


def test_a_transform_for_other_channels_than_it_normalises_is_refused() -> None:
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
def test_a_photograph_becomes_what_the_processor_makes(form: str) -> None:
    processor = _processor(form)
    recipe = recipe_of(processor)
    for image in (*photographs().values(), shapes()["225x224"], shapes()["977x131"], shapes()["3x5"]):
        file = encoded(image, "PNG")
        _require_equal(asked(recipe, [file]), _by_transformers(processor, file), recipe, recipe.agreement)
    assert (recipe.agreement == EQUAL) == form.partition(",")[0].endswith("Pil")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["CLIPImageProcessor", "CLIPImageProcessorPil"])
def test_every_mode_and_format_is_read_as_transformers_pipelines_read_it(form: str, kind: str) -> None:
    processor = _processor(form)
    recipe = recipe_of(processor)
    own = _by_transformers(processor, KINDS[kind])
    _require_equal(asked(recipe, [KINDS[kind]]), own, recipe, recipe.agreement)


@pytest.mark.parametrize("resample", [0, 1, 2, 3, 4, 5])
def test_each_filter_of_pillow_is_the_processors(resample: int) -> None:
    processor = transformers.ViTImageProcessorPil(resample=resample)
    recipe = recipe_of(processor)
    file = encoded(photographs()["china"], "PNG")
    _require_equal(asked(recipe, [file]), _by_transformers(processor, file), recipe)


@pytest.mark.slow
def test_tensors_resized_by_torchvision_differ_no_more_than_is_written() -> None:
    """On photographs; `TENSORS` says so, and that bilinear resizing is never more than two levels apart."""
    for resample in (1, 2, 3):
        processor = transformers.CLIPImageProcessor(resample=resample)
        recipe = recipe_of(processor)
        assert recipe.agreement is TENSORS
        for image in photographs().values():
            file = encoded(image, "PNG")
            apart = levels(asked(recipe, [file]), _by_transformers(processor, file), recipe)
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
def test_a_processor_that_does_more_is_refused_by_its_name(processor: str, words: str) -> None:
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
def test_settings_that_the_part_has_not_are_refused_by_their_names(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        recipe_of(transformers.ViTImageProcessor(**settings))


def test_a_processor_of_somebodys_own_class_is_refused_where_it_does_more() -> None:
    class ConvNextImageProcessor(transformers.ViTImageProcessor):
        def convert_to_rgb(self, image: Any, _: Any = None) -> Any:
            return image.flip(0)

    with pytest.raises(SourceError, match="ConvNextImageProcessor has its own convert_to_rgb"):
        recipe_of(ConvNextImageProcessor())


def test_the_tensor_has_the_models_type_and_a_row_for_each_image() -> None:
    _, recipe = _transform("usual")
    files = [encoded(image, "JPEG") for image in photographs().values()]

    together = asked(recipe, files, "float16")

    assert together.dtype == np.float16
    assert together.shape == (len(files), 3, 224, 224)
    for row, file in enumerate(files):
        assert np.array_equal(together[row], asked(recipe, [file], "float16")[0])
