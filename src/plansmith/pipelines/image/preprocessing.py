"""Image preprocessing of a source model, as far as the serving part can reproduce it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from plansmith.errors import SourceError
from plansmith.records.model import Tensor

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Files that are read, by Pillow's names: those that people have, of decoders that are looked after."""

MOST_PIXELS = 89_478_485
"""Of an image: where Pillow begins to speak of a decompression bomb; a quarter of a GiB in three channels."""

Step = Mapping[str, Any]
"""One step of `pipeline.served.framing`."""

_WHO = "timm's transform"
_TO_TENSOR = {"MaybeToTensor", "ToTensor"}
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


@dataclass(frozen=True)
class Agreement:
    """Agreement of Pillow with the source's own preprocessing, in levels of 0 to 255 before normalization.

    Args:
        mean: of the absolute differences of an image's values, at most.
        largest: at most, of any value.
    """

    mean: float
    largest: float


EQUAL = Agreement(mean=1e-4, largest=1e-3)
"""The same but for the rounding of floats: the source resizes with Pillow, too."""

TENSORS = Agreement(mean=0.2, largest=24.0)
"""The source resizes with torchvision, as whole numbers.

Measured on the photographs of scikit-image and scikit-learn, enlarged and reduced by all filters: mean below 0.13.
Bilinear: never more than 2 levels apart. Bicubic and Lanczos: 2 levels where PyTorch computes in whole numbers (x86
with AVX2); elsewhere, and in drawings, the overshoot at sharp edges, which Pillow clips between its two passes, makes
up to 19 in single values.
"""

FLOATS = Agreement(mean=0.45, largest=25.0)
"""The source resizes with torchvision, as floats that it does not round to whole levels: half a level more."""


@dataclass(frozen=True)
class ImageRecipe:
    """Image preprocessing recipe: steps and numbers, from decoded pixels to the model's input.

    Args:
        steps: that bring an image to size.
        scale: what a level of 0 to 255 is multiplied by; then `mean` is taken off, and it is divided by `std`.
        mean: for each channel.
        std: for each channel.
        upright: whether the image is turned as its EXIF orientation says.
        mode: "RGB", or "L" for one channel.
        order: which channel of the mode goes to each channel of the model's input.
        whitened: whether a file's one transparent colour becomes white.
        agreement: how far what Pillow makes may be from what the source makes.
        padded: height and width that zeros fill every image up to; None: nothing does.
    """

    steps: tuple[Step, ...]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    upright: bool
    mode: Literal["RGB", "L"] = "RGB"
    order: tuple[int, ...] = (0, 1, 2)
    whitened: bool = False
    agreement: Agreement = EQUAL
    padded: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """The height and width of every image after the steps; None if they depend on the image."""
        if self.padded is not None:
            return self.padded
        if not self.steps or self.steps[-1]["do"] not in {"exact", "crop"}:
            return None
        return int(self.steps[-1]["height"]), int(self.steps[-1]["width"])

    @property
    def values_per_level(self) -> float:
        """The largest change of the model's input, over the channels, per level."""
        return max(self.scale / std for std in self.std)

    def settings(
        self,
        *,
        raw: str,
        name: str,
        dtype: str,
        mask: Tensor | None = None,
        sizes: str = "",
        most_pixels: int = MOST_PIXELS,
    ) -> dict[str, Any]:
        """Return the constructor settings of `ImagesStep`.

        Args:
            raw: the tensor of encoded images.
            name: of the model's input.
            dtype: of that.
            mask: the model's mask of pixels, if it has one.
            sizes: the tensor that says how large images were sent; empty: nothing wants to know.
            most_pixels: of an image, before and after any step.
        """
        assert self.size is not None
        height, width = self.size
        return {
            "input": raw,
            "output": name,
            "dtype": dtype,
            "mode": self.mode,
            "upright": self.upright,
            "whitened": self.whitened,
            "steps": [dict(step) for step in self.steps],
            "height": height,
            "width": width,
            "padded": self.padded is not None,
            "mask": mask.name if mask else "",
            "mask_dtype": mask.dtype if mask else "",
            "sizes": sizes,
            "scale": self.scale,
            "mean": list(self.mean),
            "std": list(self.std),
            "order": list(self.order),
            "formats": list(FORMATS),
            "most_pixels": most_pixels,
        }


def exact(height: int, width: int, resampling: str) -> Step:
    """Resize to a size regardless of the aspect ratio."""
    return {"do": "exact", "height": height, "width": width, "filter": resampling}


def shortest(side: int, resampling: str) -> Step:
    """Resize until the shorter side has this length."""
    return {"do": "shortest", "side": side, "filter": resampling}


def fit(side: int, longest: int, resampling: str, *, multiple: int = 1) -> Step:
    """Resize until the shorter side has this length, or the longer side reaches its limit."""
    return {"do": "fit", "side": side, "longest": longest, "multiple": multiple, "filter": resampling}


def ratio(height: int, width: int, resampling: str, *, longest: float) -> Step:
    """Resize both sides by the same ratio."""
    return {"do": "ratio", "height": height, "width": width, "longest": longest, "filter": resampling}


def crop(
    height: int,
    width: int,
    *,
    rounding: Literal["down", "even"],
    before: Literal["less", "more"] = "less",
    fill: Sequence[int] = (0, 0, 0),
) -> Step:
    """Crop at the center, or pad a smaller image."""
    return {"do": "crop", "height": height, "width": width, "rounding": rounding, "before": before, "fill": list(fill)}


def inexpressible(subject: str, problem: str) -> SourceError:
    """Return the error for preprocessing that the image part has no setting for."""
    return SourceError(
        f"pipeline: {subject} {problem}, which the part for images cannot do",
        remedy="leave `pipeline` out and send what the processor makes, or change the processor's configuration",
    )


def recipe_from_transform(transform: Any, channels: int, *, upright: bool) -> ImageRecipe:
    """Convert the evaluation transform of `timm.data.create_transform` to a recipe.

    Args:
        transform: a composition.
        channels: of the model's images.
        upright: whether whoever calls it turns images as their EXIF orientation says.

    Raises:
        SourceError: it has a step that the part for images has not.
    """
    every: list[Any] = list(transform.transforms)
    if len(every) < 2:
        raise inexpressible(_WHO, f"is {_named(transform)}")
    *framing, to_tensor, normalize = every
    if type(to_tensor).__name__ not in _TO_TENSOR or type(normalize).__name__ != "Normalize":
        raise inexpressible(_WHO, f"ends with {_named(to_tensor)}, {_named(normalize)}")
    if channels not in {1, 3}:
        raise inexpressible(_WHO, f"makes {channels} channels")
    mean, std = (tuple(_numbers(values)) for values in (normalize.mean, normalize.std))
    if {len(mean), len(std)} != {channels}:
        raise inexpressible(_WHO, f"normalises {len(mean)} channels of images that have {channels}")
    mode: Literal["RGB", "L"] = "L" if channels == 1 else "RGB"
    return ImageRecipe(
        steps=tuple(_step(operation, channels) for operation in framing),
        scale=1 / 255,
        mean=mean,
        std=std,
        upright=upright,
        mode=mode,
        order=tuple(range(channels)),
    )


def _step(operation: Any, channels: int) -> Step:
    kind = type(operation).__name__
    if kind == "Resize" and getattr(operation, "max_size", None) is None:
        filter_name = str(operation.interpolation.value)
        sides = [operation.size] if isinstance(operation.size, int) else list(operation.size)
        return shortest(sides[0], filter_name) if len(sides) == 1 else exact(sides[0], sides[1], filter_name)
    if kind == "ResizeKeepRatio" and not operation.random_scale_prob and not operation.random_aspect_prob:
        height, width = operation.size
        return ratio(height, width, str(operation.interpolation.value), longest=operation.longest)
    if kind == "CenterCrop":
        height, width = operation.size
        return crop(height, width, rounding="even", fill=[0] * channels)
    if kind == "CenterCropOrPad" and operation.padding_mode == "constant":
        height, width = operation.size
        fill = [operation.fill] * channels if isinstance(operation.fill, int) else list(operation.fill)
        return crop(height, width, rounding="even", fill=fill)
    raise inexpressible(_WHO, f"has the step {_named(operation)}")


def _numbers(values: Any) -> Sequence[float]:
    """Return the numbers of a tensor or sequence as given: 32-bit floats are not extended."""
    numbers: list[float] = [float(value) for value in values]
    return numbers


def _named(step: Any) -> str:
    return " ".join(repr(step).split())


def recipe_of(processor: Any) -> ImageRecipe:
    """Convert a processor's steps on one image to a recipe.

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
    """Processor attributes, as steps and numbers.

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
        filter_name = (
            str(chosen.value) if isinstance(getattr(chosen, "value", None), str) else Resampling(chosen).name.lower()
        )
        if filter_name not in {candidate.name.lower() for candidate in Resampling}:
            raise inexpressible(self.name, f"resizes by {filter_name}")
        if filter_name == "nearest" and not self.by_pillow:
            raise inexpressible(
                self.name, "takes the nearest pixels as torchvision does, which are others than Pillow's"
            )
        return filter_name

    def resized(self) -> tuple[Step, ...]:
        """The usual resize step, if any."""
        size = self.processor.size
        if not self.processor.do_resize:
            return ()
        if size.height and size.width and not (size.shortest_edge or size.longest_edge):
            return (exact(size.height, size.width, self.resampling),)
        if size.shortest_edge and not size.longest_edge:
            return (shortest(size.shortest_edge, self.resampling),)
        raise inexpressible(self.name, f"resizes to {_describe_size(size)}")

    def cropped(self) -> tuple[Step, ...]:
        """The crop step, if any."""
        size = self.processor.crop_size
        if not self.processor.do_center_crop:
            return ()
        if not (size and size.height and size.width):
            raise inexpressible(self.name, f"crops to {_describe_size(size)}")
        return (self.crop(size.height, size.width),)

    def crop(self, height: int, width: int) -> Step:
        """Return a crop with the backend's own rounding."""
        before: Literal["less", "more"] = "more" if self.by_pillow else "less"
        return crop(height, width, rounding="down", before=before)

    def recipe(self, steps: tuple[Step, ...], *, padded: tuple[int, int] | None = None) -> ImageRecipe:
        """Return a recipe of these steps followed by the usual normalization; `padded` as in the recipe."""
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
        pad_size = getattr(processor, "pad_size", None)
        if getattr(processor, "do_pad", False) and pad_size and (pad_size.height, pad_size.width) != recipe.size:
            raise inexpressible(self.name, f"pads to {_describe_size(pad_size)}")
        return recipe


def _read(attributes: _Attributes) -> ImageRecipe:
    return attributes.recipe((*attributes.resized(), *attributes.cropped()))


def _convnext(attributes: _Attributes) -> ImageRecipe:
    """Return the ConvNeXT recipe: small images are cropped from larger ones.

    Large ones are resized without regard to aspect ratio.
    """
    processor, side = attributes.processor, attributes.processor.size.shortest_edge
    steps: tuple[Step, ...] = ()
    if processor.do_resize and side and side < _WARPED_FROM:
        steps = (shortest(int(side / processor.crop_pct), attributes.resampling), attributes.crop(side, side))
    elif processor.do_resize and side:
        steps = (exact(side, side, attributes.resampling),)
    return attributes.recipe((*steps, *attributes.cropped()))


def _poolformer(attributes: _Attributes) -> ImageRecipe:
    """Return the PoolFormer recipe: the size is that of the crop, which is a fraction of the resized image."""
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
    """Return the LeViT recipe: the shorter side is resized to 256 pixels for each 224 of the size."""
    side = attributes.processor.size.shortest_edge
    if not attributes.processor.do_resize or not side:
        return _read(attributes)
    return attributes.recipe((shortest(int((256 / 224) * side), attributes.resampling), *attributes.cropped()))


def _efficientnet(attributes: _Attributes) -> ImageRecipe:
    """Return the EfficientNet recipe.

    Levels may range from -1 to 1, and models with a head divide by the deviation twice.
    """
    processor, recipe = attributes.processor, _read(attributes)
    mean, std = recipe.mean, recipe.std
    if processor.do_rescale and processor.rescale_offset:
        mean = tuple(value + 1.0 for value in mean)
    if processor.include_top:
        std = tuple(value * more for value, more in zip(std, _channels(processor.image_std), strict=True))
    return replace(recipe, mean=mean, std=std)


def _mobilevit(attributes: _Attributes) -> ImageRecipe:
    """Return the MobileViT recipe: no normalization; channels may be reversed."""
    steps = (*attributes.resized(), *attributes.cropped())
    flat = replace(attributes.recipe(steps), mean=(0.0,) * _CHANNELS, std=(1.0,) * _CHANNELS)
    return replace(flat, order=(2, 1, 0)) if attributes.processor.do_flip_channel_order else flat


def _segformer(attributes: _Attributes) -> ImageRecipe:
    """Return the SegFormer recipe: no crop."""
    return attributes.recipe(attributes.resized())


def _detection(attributes: _Attributes) -> ImageRecipe:
    """Return the recipe of detection models: no crop.

    An image fitted into a size may be padded to one that all images share.
    """
    processor, size = attributes.processor, attributes.processor.size
    padded = getattr(processor, "pad_size", None) if getattr(processor, "do_pad", False) else None
    if not (processor.do_resize and size.shortest_edge and size.longest_edge):
        return attributes.recipe(attributes.resized())
    if not padded:
        raise SourceError(
            f"pipeline: {attributes.name} makes images of different sizes ({_describe_size(size)}), and the model is"
            " served with images of one",
            remedy=f'write do_pad: true and pad_size: {{"height": {size.longest_edge}, "width": {size.longest_edge}}},'
            " or a size with height and width, into preprocessor_config.json",
        )
    multiple = _YOLOS_MULTIPLE if "Yolos" in attributes.name else 1
    steps = (fit(size.shortest_edge, size.longest_edge, attributes.resampling, multiple=multiple),)
    return attributes.recipe(steps, padded=(int(padded.height), int(padded.width)))


def _dinov3(attributes: _Attributes) -> ImageRecipe:
    """Return the DINOv3 recipe: the resize works on floats."""
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
    channel_values = list(values) if isinstance(values, list | tuple) else [values] * _CHANNELS
    return tuple(float(value) for value in channel_values)


def _describe_size(size: Any) -> str:
    fields = {} if size is None else {name: value for name, value in dict(size).items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in sorted(fields.items())) or "no size"
