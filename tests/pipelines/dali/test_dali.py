"""DALI makes of real images what the sources' own preprocessing makes of them, within a bound."""

from __future__ import annotations

import io
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from plansmith.config.pipeline import DaliOptions
from plansmith.config.targets import load_target, require_dali
from plansmith.errors import EngineError, EnvironmentFault, UsageError
from plansmith.pipelines.dali.parts import (
    DALI_PART,
    ENCODED,
    PIPELINE_FILE,
    DaliPlace,
    dali_part,
    run_pipeline,
    serialise_pipeline,
    with_dali,
)
from plansmith.pipelines.dali.recipe import Difference, Recipe, difference, recipe_from_settings
from plansmith.pipelines.draft import Draft, DraftPart, run_parts, write_part
from plansmith.pipelines.served.encoded import EncodedStep
from plansmith.pipelines.served.images import ImagesStep
from plansmith.records.model import Device, Tensor
from plansmith.triton.server import environment

from ...support.pipelines.dali import CROP, EXACT, real_images, settings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dali")]


@pytest.fixture(scope="module")
def site() -> Path:
    return environment.dali_folder(require_dali(load_target("local-cpu")))


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    return real_images()


def opened(image: bytes) -> Image.Image:
    return Image.open(io.BytesIO(image)).convert("RGB")


def written(recipe: Recipe, site: Path, out: Path, device: Device = "cpu") -> Path:
    serialise_pipeline(recipe, out, site=site, device=device, max_batch_size=8, input_name=ENCODED.name)
    return out


def tensors(recipe: Recipe, images: list[bytes], site: Path, folder: Path) -> np.ndarray[Any, Any]:
    pipeline = written(recipe, site, folder / PIPELINE_FILE)
    output = run_pipeline(pipeline, images, site=site, input_name=ENCODED.name)
    assert output.dtype.name == recipe.dtype
    return output


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_same_recipe_gives_same_bytes(device: Device, site: Path, tmp_path: Path) -> None:
    """The same recipe gives the same bytes, which name no place of this machine."""
    recipe = recipe_from_settings(settings())
    first, second = (written(recipe, site, tmp_path / name, device).read_bytes() for name in ("a", "b"))
    assert sha256(first).digest() == sha256(second).digest()
    assert (b"mixed" in first) == (device == "gpu")
    assert first.count(b"adjust_orientation") == 2, "a newer DALI has another default, of the image and of its shape"
    for place in (bytes(tmp_path), b".py", b"serialise", b"plansmith"):
        assert place not in first


def test_part_holds_pipeline_and_needs(site: Path, tmp_path: Path) -> None:
    """The part holds the pipeline and what its configuration needs."""
    recipe = recipe_from_settings(settings())
    part = write_part(dali_part(recipe, DaliPlace(site, "cpu", 4)), "1.26.4", tmp_path)
    assert (part.backend, part.files, part.parameters) == ("dali", ("model.dali",), {"num_threads": "4"})
    assert (part.inputs, part.outputs, part.joins_requests) == ((ENCODED,), (recipe.tensor,), False)
    assert [file.name for file in (tmp_path / DALI_PART).iterdir()] == ["model.dali"]


def test_options_reach_dali(site: Path, tmp_path: Path) -> None:
    """Threads stand in Triton's configuration, and memory for a GPU's decoder in the pipeline, where they are set."""
    recipe, hints = recipe_from_settings(settings()), ("host_memory_padding", "preallocate_width_hint")
    options = DaliOptions(
        num_threads=9, host_memory_padding=2**25, preallocate_width_hint=4000, preallocate_height_hint=3000
    )
    plain, tuned = (
        write_part(dali_part(recipe, DaliPlace(site, "gpu", 4, chosen)), "1.26.4", tmp_path / name)
        for name, chosen in (("plain", DaliOptions()), ("tuned", options))
    )
    assert [part.parameters for part in (plain, tuned)] == [{"num_threads": "4"}, {"num_threads": "9"}]
    files = [(tmp_path / name / DALI_PART / PIPELINE_FILE).read_bytes() for name in ("plain", "tuned")]
    assert [[hint.encode() in file for hint in hints] for file in files] == [[False, False], [True, True]]


def timm_tensors(images: list[bytes], **config: Any) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """The configuration of timm, and its own transform of the images."""
    from timm.data import create_transform, resolve_data_config

    resolved = resolve_data_config(pretrained_cfg={"input_size": (3, 224, 224), **config})
    transform = create_transform(**resolved, is_training=False)
    return resolved, np.stack([transform(opened(image)).numpy() for image in images])


TIMM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a ResNet": ({"crop_pct": 0.95, "interpolation": "bicubic"}, {}),
    "bilinear": (
        {"crop_pct": 0.875, "interpolation": "bilinear"},
        {"steps": [{"do": "shortest", "side": 256, "filter": "bilinear"}, CROP]},
    ),
    "squashed": (
        {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "squash"},
        {"steps": [{**EXACT, "filter": "bicubic"}, CROP]},
    ),
    "with a border": (
        {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "border"},
        {
            "steps": [
                {"do": "ratio", "height": 224, "width": 224, "longest": 1.0, "filter": "bicubic"},
                {**CROP, "fill": [124, 116, 104]},
            ]
        },
    ),
    "squashed, then scaled": (
        {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "squash"},
        {
            "steps": [
                {**EXACT, "filter": "bicubic"},
                {"do": "shortest", "side": 224, "filter": "bicubic"},
                {"do": "ratio", "height": 224, "width": 224, "longest": 0, "filter": "bicubic"},
                CROP,
            ]
        },
    ),
    "other means": (
        {"crop_pct": 0.95, "interpolation": "bicubic", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.4, 0.3)},
        {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.4, 0.3]},
    ),
}


@pytest.mark.parametrize("name", TIMM)
def test_tensors_match_timm_transform(name: str, images: list[bytes], site: Path, tmp_path: Path) -> None:
    """Tensors are those of timm's own transform within the bound."""
    config, changes = TIMM[name]
    recipe = recipe_from_settings(settings(**changes))
    _, expected = timm_tensors(images, **config)
    deviation = difference(tensors(recipe, images, site, tmp_path), expected, recipe)
    assert deviation.is_within_bound, deviation
    assert deviation != Difference(0, 0)


def test_tensors_match_transformers_processor(images: list[bytes], site: Path, tmp_path: Path) -> None:
    """Tensors are those of a Transformers processor within the bound."""
    from transformers import CLIPImageProcessor

    processor = CLIPImageProcessor()
    expected = np.asarray(processor([opened(image) for image in images], return_tensors="np")["pixel_values"])
    changes = {
        "steps": [{"do": "shortest", "side": 224, "filter": "bicubic"}, {**CROP, "rounding": "down"}],
        "mean": list(processor.image_mean),
        "std": list(processor.image_std),
    }
    recipe = recipe_from_settings(settings(**changes))
    deviation = difference(tensors(recipe, images, site, tmp_path), expected, recipe)
    assert deviation.is_within_bound, deviation


def by_pillow(image: bytes, size: tuple[int, int], at: tuple[int, int], crop: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Levels of a crop of a resized image, [channels, height, width]."""
    resized = opened(image).resize(size, Image.Resampling.LANCZOS)
    left, top = at
    return np.asarray(resized.crop((left, top, left + crop[0], top + crop[1])), np.float32).transpose(2, 0, 1)


PLAIN = {"scale": 1.0, "mean": [0.0] * 3, "std": [1.0] * 3}


@pytest.mark.parametrize(("rounding", "at"), [("even", (38, 14)), ("down", (37, 13))])
def test_sizes_and_crops_match_python(rounding: str, at: tuple[int, int], site: Path, tmp_path: Path) -> None:
    """Margins of 75 and 27 pixels: half of the one is rounded up to be even, that of the other, too."""
    (image,) = [candidate for candidate in real_images() if opened(candidate).size == (640, 427)][:1]
    width = 230 * 640 // 427
    crop = (width - 75, 230 - 27)
    steps = [
        {"do": "shortest", "side": 230, "filter": "lanczos"},
        {**CROP, "height": crop[1], "width": crop[0], "rounding": rounding},
    ]
    recipe = recipe_from_settings(settings(steps=steps, width=crop[0], height=crop[1], **PLAIN))
    deviation = difference(
        tensors(recipe, [image], site, tmp_path), by_pillow(image, (width, 230), at, crop)[None], recipe
    )
    assert deviation.is_within_bound, deviation


def test_shorter_side_uses_one_ratio(site: Path, tmp_path: Path) -> None:
    """640 x 427 to at least 200 x 150: 224.82 x 150, rounded."""
    (image,) = [candidate for candidate in real_images() if opened(candidate).size == (640, 427)][:1]
    steps = [{"do": "ratio", "height": 150, "width": 200, "longest": 0.0, "filter": "lanczos"}]
    steps.append({**CROP, "height": 150, "width": 225, "rounding": "down"})
    recipe = recipe_from_settings(settings(steps=steps, width=225, height=150, **PLAIN))
    expected = by_pillow(image, (225, 150), (0, 0), (225, 150))
    assert difference(tensors(recipe, [image], site, tmp_path), expected[None], recipe).is_within_bound


@pytest.mark.parametrize(("before", "begin"), [("less", 1), ("more", 2)])
def test_small_image_gets_border(before: str, begin: int, site: Path, tmp_path: Path) -> None:
    """What is smaller than its crop gets its border."""
    content = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    out = io.BytesIO()
    Image.fromarray(content).save(out, "PNG")
    steps = [{**CROP, "height": 7, "width": 4, "fill": [7, 8, 9], "before": before}]
    recipe = recipe_from_settings(settings(steps=steps, height=7, width=4, **PLAIN))
    (tensor,) = tensors(recipe, [out.getvalue()], site, tmp_path)
    expected = np.full((7, 4, 3), (7, 8, 9))
    expected[begin : begin + 4] = content[:, 1:5]
    np.testing.assert_array_equal(tensor, expected.transpose(2, 0, 1))


@pytest.mark.parametrize("upright", [True, False])
def test_orientation_followed_like_source(upright: bool, images: list[bytes], site: Path, tmp_path: Path) -> None:
    """An image is turned as its orientation says where the source turns it."""
    orientation = Image.Exif()
    orientation[0x112] = 6
    out = io.BytesIO()
    opened(images[0]).save(out, "JPEG", exif=orientation)
    image = Image.open(io.BytesIO(out.getvalue()))
    shown = ImageOps.exif_transpose(image) if upright else image
    side = 224 * max(shown.size) // min(shown.size)
    size = (224, side) if shown.width < shown.height else (side, 224)
    shift = (side - 224) // 2
    at = (0, shift) if shown.width < shown.height else (shift, 0)
    steps = [{"do": "shortest", "side": 224, "filter": "lanczos"}, {**CROP, "rounding": "down"}]
    recipe = recipe_from_settings(settings(steps=steps, upright=upright, order=[2, 1, 0], **PLAIN))
    resized = np.asarray(shown.resize(size, Image.Resampling.LANCZOS), np.float32)
    expected = resized[at[1] :, at[0] :][:224, :224, ::-1].transpose(2, 0, 1)
    deviation = difference(tensors(recipe, [out.getvalue()], site, tmp_path), expected[None], recipe)
    assert deviation.is_within_bound, deviation


def test_resnet_keeps_labels_and_embeddings(images: list[bytes], site: Path, tmp_path: Path) -> None:
    """A ResNet gives the same labels and nearly the same embeddings."""
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10).eval()
    _, expected = timm_tensors(images, crop_pct=0.95, interpolation="bicubic")
    result = tensors(recipe_from_settings(settings()), images, site, tmp_path)
    with torch.inference_mode():
        theirs, ours = (model.forward_features(torch.from_numpy(batch)) for batch in (expected, result))
        theirs, ours = (model.forward_head(features, pre_logits=True) for features in (theirs, ours))
        labels = [model.get_classifier()(features).argmax(1).tolist() for features in (theirs, ours)]
    cosines = torch.nn.functional.cosine_similarity(theirs, ours)
    assert float(cosines.min()) > 0.9999
    assert labels[0] == labels[1]
    assert len(set(labels[0])) > 1


def test_half_precision_rounds_single_precision(images: list[bytes], site: Path, tmp_path: Path) -> None:
    """Half precision is what single precision rounds to."""
    single, half = (
        tensors(recipe_from_settings(settings(dtype=dtype)), images[:4], site, tmp_path)
        for dtype in ("float32", "float16")
    )
    np.testing.assert_allclose(half.astype(np.float32), single, rtol=1e-3, atol=1e-4)


def test_undecodable_image_quotes_dali(site: Path, tmp_path: Path) -> None:
    """An image that cannot be decoded is an error with DALI's words."""
    with pytest.raises(EngineError, match="decoders"):
        tensors(recipe_from_settings(settings()), [b"no image"], site, tmp_path)


def test_missing_dali_names_remedy(tmp_path: Path) -> None:
    """A folder without DALI is told with what to type."""
    with pytest.raises(EnvironmentFault, match="cannot be loaded") as fault:
        written(recipe_from_settings(settings()), tmp_path, tmp_path / PIPELINE_FILE)
    assert "plansmith serve-env add TARGET --dali" in fault.value.remedy


def drafted(step: type[Any] = ImagesStep) -> Draft:
    """A pipeline of a ResNet of timm, as whoever knows the source plans it."""
    before = DraftPart("images", step, settings(), (RAW,), (Tensor(name="x", dtype="float32", dims=("batch",)),))
    return Draft("image", "tensors", (before,), (), (RAW,), (), {}, dict, "timm")


RAW = Tensor(name="image", dtype="string", dims=("batch", 1))


def test_dali_replaces_pillow(images: list[bytes], site: Path, tmp_path: Path) -> None:
    """DALI takes the place of Pillow in a pipeline, and both parts agree with it."""
    draft = with_dali(drafted(), DaliPlace(site, "gpu", 4))
    assert [part.name for part in draft.before] == ["encoded", "dali"]
    for part in draft.before:
        write_part(part, "1.26.4", tmp_path)
    rows = np.empty((3, 1), object)
    rows[:, 0] = images[:3]
    values = run_parts(draft.before, tmp_path, {"image": rows})
    (pillow,) = ImagesStep(settings(), tmp_path).answer([{"image": rows}])
    assert isinstance(pillow, dict)
    apart = np.abs(values["x"].astype(np.float64) - pillow["x"]).mean(axis=(1, 2, 3)).max()
    assert 0 < apart < draft.bounds["x"]
    assert difference(values["x"], pillow["x"], recipe_from_settings(settings())).is_within_bound


def test_imageless_pipeline_takes_no_dali(site: Path) -> None:
    """A pipeline that reads no images takes no DALI."""
    with pytest.raises(UsageError, match="is for images"):
        with_dali(drafted(EncodedStep), DaliPlace(site, "cpu", 4))
