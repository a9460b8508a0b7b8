"""Recipes of transformers' image processors, read from their attributes. Runs in the worker.

Most processors are attributes alone: their backend, of Pillow or of torchvision, does what those say. Those that do
something of their own are known by name here, with what that is; all others are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from plansmith.errors import SourceError
from plansmith.pipelines.image.preprocessing import (
    EQUAL,
    FLOATS,
    TENSORS,
    ImageRecipe,
    Step,
    crop,
    exact,
    fit,
    inexpressible,
    shortest,
)
from plansmith.pipelines.image.timm_preprocessing import recipe_from_transform

# What a processor of its own kind would change.
_WORK = (
    "preprocess",
    "_preprocess",
    "_preprocess_image_like_inputs",
    "_prepare_images_structure",
    "_standardize_kwargs",
    "resize",
    "center_crop",
    "rescale",
    "normalize",
    "rescale_and_normalize",
    "pad",
    "process_image",
    "convert_to_rgb",
    "_fuse_mean_std_and_rescale_factor",
)
_WARPED_FROM = 384
_YOLOS_MULTIPLE = 16
_CHANNELS = 3


def recipe_of(processor: Any) -> ImageRecipe:
    """What a processor does with one image.

    Raises:
        SourceError: it does something that the part for images cannot, or does not make images of one size.
    """
    from transformers.image_processing_backends import PilBackend, TorchvisionBackend

    name = type(processor).__name__
    if hasattr(processor, "val_transforms") and name == "TimmWrapperImageProcessor":
        channels = int(processor.data_config["input_size"][0])
        return _of_one_size(recipe_from_transform(processor.val_transforms, channels, upright=True), name)
    backend = next((base for base in (TorchvisionBackend, PilBackend) if isinstance(processor, base)), None)
    if backend is None:
        raise inexpressible(name, "is of no kind that transformers describes by attributes")
    own = [work for work in _WORK if getattr(type(processor), work, None) is not getattr(backend, work, None)]
    is_known = type(processor).__module__.startswith("transformers.models.")
    read = _OWN.get(name.removesuffix("Pil")) if is_known else None
    if own and read is None:
        raise inexpressible(name, f"has its own {', '.join(own)}")
    recipe = (read or _read)(_Attributes(processor, by_pillow=backend is PilBackend))
    return _of_one_size(recipe, name)


@dataclass(frozen=True)
class _Attributes:
    """A processor's attributes, as steps and numbers.

    Args:
        processor: has them.
        by_pillow: its backend is Pillow's, and not torchvision's.
    """

    processor: Any
    by_pillow: bool

    @property
    def name(self) -> str:
        return type(self.processor).__name__

    @property
    def resampling(self) -> str:
        """The filter's name."""
        from PIL.Image import Resampling

        chosen = self.processor.resample
        if chosen is None:
            return "bilinear"
        known = (
            str(chosen.value) if isinstance(getattr(chosen, "value", None), str) else Resampling(chosen).name.lower()
        )
        if known not in {one.name.lower() for one in Resampling}:
            raise inexpressible(self.name, f"resizes by {known}")
        if known == "nearest" and not self.by_pillow:
            raise inexpressible(
                self.name, "takes the nearest pixels as torchvision does, which are others than Pillow's"
            )
        return known

    def resized(self) -> tuple[Step, ...]:
        """The usual resize, if there is one."""
        size = self.processor.size
        if not self.processor.do_resize:
            return ()
        if size.height and size.width and not (size.shortest_edge or size.longest_edge):
            return (exact(size.height, size.width, self.resampling),)
        if size.shortest_edge and not size.longest_edge:
            return (shortest(size.shortest_edge, self.resampling),)
        raise inexpressible(self.name, f"resizes to {_told(size)}")

    def cropped(self) -> tuple[Step, ...]:
        """The crop, if there is one."""
        size = self.processor.crop_size
        if not self.processor.do_center_crop:
            return ()
        if not (size and size.height and size.width):
            raise inexpressible(self.name, f"crops to {_told(size)}")
        return (self.crop(size.height, size.width),)

    def crop(self, height: int, width: int) -> Step:
        """A crop with the backend's own rounding."""
        before: Literal["less", "more"] = "more" if self.by_pillow else "less"
        return crop(height, width, rounding="down", before=before)

    def recipe(self, steps: tuple[Step, ...], *, padded: tuple[int, int] | None = None) -> ImageRecipe:
        """With these steps, and the usual numbers behind them; `padded` as in the recipe."""
        processor = self.processor
        normal = bool(processor.do_normalize)
        recipe = ImageRecipe(
            steps=steps,
            scale=float(processor.rescale_factor) if processor.do_rescale else 1.0,
            mean=_channels(processor.image_mean) if normal else (0.0,) * _CHANNELS,
            std=_channels(processor.image_std) if normal else (1.0,) * _CHANNELS,
            upright=True,
            whitened=bool(processor.do_convert_rgb),
            agreement=EQUAL if self.by_pillow else TENSORS,
            padded=padded,
        )
        wanted = getattr(processor, "pad_size", None)
        if getattr(processor, "do_pad", False) and wanted and (wanted.height, wanted.width) != recipe.size:
            raise inexpressible(self.name, f"pads to {_told(wanted)}")
        return recipe


def _read(attributes: _Attributes) -> ImageRecipe:
    return attributes.recipe((*attributes.resized(), *attributes.cropped()))


def _convnext(attributes: _Attributes) -> ImageRecipe:
    """Small images are cropped out of larger ones; large ones are squeezed whole."""
    processor, side = attributes.processor, attributes.processor.size.shortest_edge
    steps: tuple[Step, ...] = ()
    if processor.do_resize and side and side < _WARPED_FROM:
        steps = (shortest(int(side / processor.crop_pct), attributes.resampling), attributes.crop(side, side))
    elif processor.do_resize and side:
        steps = (exact(side, side, attributes.resampling),)
    return attributes.recipe((*steps, *attributes.cropped()))


def _poolformer(attributes: _Attributes) -> ImageRecipe:
    """The size is that of the crop, which is a share of what is resized."""
    processor, size = attributes.processor, attributes.processor.size
    share = processor.crop_pct
    if not processor.do_resize or share is None:
        return _read(attributes)
    side = size.shortest_edge or (size.height if size.height == size.width else None)
    if side:
        step = shortest(int(side / share), attributes.resampling)
    else:
        step = exact(int(size.height / share), int(size.width / share), attributes.resampling)
    return attributes.recipe((step, *attributes.cropped()))


def _levit(attributes: _Attributes) -> ImageRecipe:
    """The shorter side gets 256 pixels for each 224 of the size."""
    side = attributes.processor.size.shortest_edge
    if not attributes.processor.do_resize or not side:
        return _read(attributes)
    return attributes.recipe((shortest(int((256 / 224) * side), attributes.resampling), *attributes.cropped()))


def _efficientnet(attributes: _Attributes) -> ImageRecipe:
    """Levels may go from -1 to 1, and are divided by the deviation twice where the model has its head."""
    processor, recipe = attributes.processor, _read(attributes)
    mean, std = recipe.mean, recipe.std
    if processor.do_rescale and processor.rescale_offset:
        mean = tuple(value + 1.0 for value in mean)
    if processor.include_top:
        std = tuple(value * more for value, more in zip(std, _channels(processor.image_std), strict=True))
    return replace(recipe, mean=mean, std=std)


def _mobilevit(attributes: _Attributes) -> ImageRecipe:
    """Nothing is normalised, and the channels may be turned round."""
    steps = (*attributes.resized(), *attributes.cropped())
    flat = replace(attributes.recipe(steps), mean=(0.0,) * _CHANNELS, std=(1.0,) * _CHANNELS)
    return replace(flat, order=(2, 1, 0)) if attributes.processor.do_flip_channel_order else flat


def _segformer(attributes: _Attributes) -> ImageRecipe:
    """Nothing is cropped."""
    return attributes.recipe(attributes.resized())


def _detection(attributes: _Attributes) -> ImageRecipe:
    """Nothing is cropped; what is fitted into a size may be padded, to one that is the same for all images."""
    processor, size = attributes.processor, attributes.processor.size
    padded = getattr(processor, "pad_size", None) if getattr(processor, "do_pad", False) else None
    if not (processor.do_resize and size.shortest_edge and size.longest_edge):
        return attributes.recipe(attributes.resized())
    if not padded:
        raise SourceError(
            f"pipeline: {attributes.name} makes images of different sizes ({_told(size)}), and the model is served with"
            " images of one",
            remedy=f'write do_pad: true and pad_size: {{"height": {size.longest_edge}, "width": {size.longest_edge}}},'
            " or a size with height and width, into preprocessor_config.json",
        )
    multiple = _YOLOS_MULTIPLE if "Yolos" in attributes.name else 1
    steps = (fit(size.shortest_edge, size.longest_edge, attributes.resampling, multiple=multiple),)
    return attributes.recipe(steps, padded=(int(padded.height), int(padded.width)))


def _dinov3(attributes: _Attributes) -> ImageRecipe:
    """What is resized are floats."""
    return replace(_read(attributes), agreement=FLOATS)


_OWN: dict[str, Callable[[_Attributes], ImageRecipe]] = {
    "BeitImageProcessor": _read,
    "ConditionalDetrImageProcessor": _detection,
    "ConvNextImageProcessor": _convnext,
    "DINOv3ViTImageProcessor": _dinov3,
    "DeformableDetrImageProcessor": _detection,
    "DetrImageProcessor": _detection,
    "EfficientNetImageProcessor": _efficientnet,
    "LevitImageProcessor": _levit,
    "MobileNetV2ImageProcessor": _read,
    "MobileViTImageProcessor": _mobilevit,
    "PoolFormerImageProcessor": _poolformer,
    "RTDetrImageProcessor": _detection,
    "SegformerImageProcessor": _segformer,
    "YolosImageProcessor": _detection,
}
"""Processors with work of their own; those that stand here with the usual reading have it for maps in training."""


def _of_one_size(recipe: ImageRecipe, name: str) -> ImageRecipe:
    if recipe.size is None:
        raise inexpressible(name, "makes images of different sizes")
    return recipe


def _channels(values: Any) -> tuple[float, ...]:
    given = list(values) if isinstance(values, list | tuple) else [values] * _CHANNELS
    return tuple(float(value) for value in given)


def _told(size: Any) -> str:
    given = {} if size is None else {name: value for name, value in dict(size).items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in sorted(given.items())) or "no size"
