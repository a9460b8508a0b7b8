"""Image reference: the source library's own preprocessing, PyTorch and labels on encoded images. Heavy worker only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.data import synthetic
from plansmith.errors import SourceError
from plansmith.pipelines.image.preprocessing import ImageRecipe, recipe_from_transform, recipe_of
from plansmith.sources.directory import read_config
from plansmith.sources.huggingface.processors import read_preprocessors
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    Pixels = NDArray[np.generic]


_ORIENTATION = 0x0112
_QUARTER_TURN = 6
_QUALITY = 90

# timm's names of weights say what they were trained on last: "a1_in1k", "augreg_in21k_ft_in1k".
_IMAGENET = re.compile(r"(^|_)in(1k|12k|21k|22k)$")
_DIGITS = 6
"""Of an object's score behind the point."""

Ranked = tuple[list[str], list[float]]
"""Labels and their scores, the likeliest first."""


def image_questions(raw: str, *, max_batch: int, one_size: bool = False) -> dict[str, dict[str, NDArray[np.generic]]]:
    """Return image requests by name; deterministic.

    Args:
        raw: name of the tensor of encoded images.
        max_batch: how many images a request may have.
        one_size: whether those of a request have to be of one size.
    """
    photo, tall, wide = (_drawn(*size) for size in ((300, 400, 1), (500, 281, 2), (197, 640, 3)))
    beside = [_drawn(300, 400, seed) for seed in (5, 6)] if one_size else [wide, tall]
    see_through = photo.convert("RGBA")
    see_through.putalpha(tall.convert("L").resize(photo.size))
    turned = photo.getexif()
    turned[_ORIENTATION] = _QUARTER_TURN
    requests = {
        "jpeg": [_encoded(photo, "JPEG")],
        "png": [_encoded(tall, "PNG")],
        "batch": [_encoded(beside[0], "JPEG"), _encoded(beside[1], "PNG"), _encoded(photo, "JPEG")],
        "grey": [_encoded(photo.convert("L"), "JPEG"), _encoded(beside[0].convert("LA"), "PNG")],
        "palette": [_encoded(tall.convert("P"), "PNG")],
        "transparent": [_encoded(see_through, "PNG")],
        "cmyk": [_encoded(wide.convert("CMYK"), "JPEG")],
        "turned": [_encoded(photo, "JPEG", exif=turned)],
        "tiny": [_encoded(_drawn(9, 7, 4), "PNG")],
    }
    return {name: {raw: bytes_array(files[:max_batch])} for name, files in requests.items()}


def files_of(feed: Any, raw: str) -> Iterator[bytes]:
    """Return the encoded images of a request, row by row."""
    yield from feed[raw].reshape(-1).tolist()


def bytes_array(files: Sequence[bytes]) -> NDArray[np.generic]:
    """Return encoded images as an array for requests: [batch, 1]."""
    import numpy as np

    array = np.empty((len(files), 1), object)
    array[:, 0] = files
    return array


def _drawn(height: int, width: int, seed: int) -> Image:
    from PIL import Image

    return Image.fromarray(synthetic.sample_images(1, height, width, seed=seed)[0])


def _encoded(image: Image, file_format: str, **options: Any) -> bytes:
    out = BytesIO()
    if file_format == "JPEG":
        options["quality"] = _QUALITY
    image.save(out, file_format, **options)
    return out.getvalue()


@dataclass(frozen=True)
class ImageSource:
    """Image source model.

    Args:
        recipe: its preprocessing, as the part for images does it.
        prepare: its preprocessing, as its own library does it: encoded images to the model's inputs by name.
        labels: of its classes, in their order; none where it has no classes.
        scoring: what makes scores of its logits.
        rank: the best labels of one encoded image, by its own library.
        description: that library.
        processor: its image processor; None of timm.
    """

    recipe: ImageRecipe
    prepare: Callable[[Sequence[bytes]], Mapping[str, Pixels]]
    labels: tuple[str, ...]
    scoring: Literal["softmax", "sigmoid", "none"]
    rank: Callable[[bytes, int], Ranked]
    description: str
    processor: Any = None


def timm_source(live: LoadedModel, folder: Path) -> ImageSource:
    """Return a timm model as an image source.

    Raises:
        SourceError: its transform does something that the part for images cannot.
    """
    import timm
    import torch

    module: Any = live.module
    config = timm.data.resolve_model_data_config(module.model)
    transform = timm.data.create_transform(**config, is_training=False)
    recipe = recipe_from_transform(transform, config["input_size"][0], upright=False)
    labels = _timm_labels(module.model, folder)

    def prepare(files: Sequence[bytes]) -> Mapping[str, Pixels]:
        # As timm's own data sets open files: without a look at the orientation.
        pixels = torch.stack([transform(open_image(file).convert(recipe.mode)) for file in files])
        return {live.inputs.tensors[0].name: pixels.numpy()}

    def rank(file: bytes, top_k: int) -> Ranked:
        (logits,) = live.ask(prepare([file])).values()
        scores, places = torch.from_numpy(logits[0]).softmax(-1).topk(top_k)
        return [labels[place] for place in places.tolist()], scores.tolist()

    description = f"timm {timm.__version__}: its evaluation transform, PyTorch in FP32"
    return ImageSource(recipe, prepare, labels, "softmax", rank, description)


def transformers_source(live: LoadedModel, folder: Path, *, trust_remote_code: bool) -> ImageSource:
    """Return a transformers model with an image processor as an image source.

    Raises:
        SourceError: there is none, or it does something that the part for images cannot.
    """
    import torch
    import transformers
    from transformers.image_utils import load_image

    processor = read_preprocessors(folder, trust_remote_code=trust_remote_code).images
    if processor is None:
        raise SourceError(
            f"{folder.name} has no image processor",
            remedy="save it beside the model (processor.save_pretrained), or leave `pipeline` out",
        )
    module: Any = live.module
    config = module.model.config

    def prepare(files: Sequence[bytes]) -> Mapping[str, Pixels]:
        batches = [processor(images=load_image(open_image(file)), return_tensors="pt") for file in files]
        pixels = torch.cat([entry["pixel_values"] for entry in batches])
        # A processor that fills nothing up makes no mask, and the model then takes all for the image.
        whole = torch.ones_like(pixels[:1, 0], dtype=torch.int64)
        mask = torch.cat([entry.get("pixel_mask", whole) for entry in batches])
        arrays = {"pixel_values": pixels.numpy(), "pixel_mask": mask.numpy()}
        return {tensor.name: arrays[tensor.name] for tensor in live.inputs.tensors if tensor.name in arrays}

    def rank(file: bytes, top_k: int) -> Ranked:
        kind: Any = transformers.ImageClassificationPipeline
        library = kind(model=module.model, image_processor=processor, device=module.model.device)
        answers = library(open_image(file), top_k=top_k)
        return [entry["label"] for entry in answers], [entry["score"] for entry in answers]

    named = {int(number): str(name) for number, name in (config.id2label or {}).items()}
    labels = tuple(named.get(number, f"LABEL_{number}") for number in range(len(named)))
    description = f"transformers {transformers.__version__}: {type(processor).__name__}, PyTorch in FP32"
    return ImageSource(recipe_of(processor), prepare, labels, _scoring(config), rank, description, processor)


def infer_ranked(source: ImageSource, files: Sequence[bytes], top_k: int) -> Mapping[str, Pixels]:
    """Return the labels and scores of encoded images, by the source's own library."""
    import numpy as np

    rankings = [source.rank(file, top_k) for file in files]
    labels = np.empty((len(rankings), top_k), object)
    for row, (names, _) in enumerate(rankings):
        labels[row] = [name.encode() for name in names]
    return {"label": labels, "score": np.array([scores for _, scores in rankings], np.float32)}


def infer_objects(
    source: ImageSource, live: LoadedModel, files: Sequence[bytes], threshold: float
) -> Mapping[str, Pixels]:
    """Return the objects in encoded images, by transformers' object detection, as JSON."""
    import numpy as np
    import transformers

    module: Any = live.module
    kind: Any = transformers.ObjectDetectionPipeline
    library = kind(model=module.model, image_processor=source.processor, device=module.model.device)
    documents = np.empty((len(files), 1), object)
    for row, file in enumerate(files):
        objects = library(open_image(file), threshold=threshold)
        records = [item | {"score": round(item["score"], _DIGITS)} for item in objects]
        documents[row, 0] = json.dumps(records, ensure_ascii=False).encode()
    return {"objects": documents}


def infer_class_maps(
    source: ImageSource, live: LoadedModel, files: Sequence[bytes], dtype: str
) -> Mapping[str, Pixels]:
    """Return the class map of every encoded image by its processor's own postprocessing, and its classes as JSON."""
    from types import SimpleNamespace

    import numpy as np
    import torch
    from transformers.image_utils import load_image

    maps, segments = [], np.empty((len(files), 1), object)
    for row, file in enumerate(files):
        image = load_image(open_image(file))
        output = SimpleNamespace(logits=torch.from_numpy(live.ask(source.prepare([file]))["logits"]))
        size = [(image.height, image.width)]
        (class_map,) = source.processor.post_process_semantic_segmentation(output, target_sizes=size)
        maps.append(class_map.numpy().astype(dtype))
        records = [
            {"id": number, "label": source.labels[number], "pixels": int((class_map == number).sum())}
            for number in class_map.unique().tolist()
        ]
        segments[row, 0] = json.dumps(records, ensure_ascii=False).encode()
    return {"class_map": np.stack(maps), "segments": segments}


def _scoring(config: Any) -> Literal["softmax", "sigmoid", "none"]:
    """Return how transformers' image classification turns logits into scores."""
    if config.problem_type == "regression":
        return "none"
    return "sigmoid" if config.problem_type == "multi_label_classification" or config.num_labels == 1 else "softmax"


def _timm_labels(model: Any, folder: Path) -> tuple[str, ...]:
    """Return the directory's label names, or ImageNet's if the weights were trained on it; else numbers."""
    import timm

    count = int(getattr(model, "num_classes", 0) or 0)
    config = read_config(folder)
    own = config.get("label_names") or config.get("pretrained_cfg", {}).get("label_names")
    if isinstance(own, list) and len(own) == count:
        return tuple(map(str, own))
    pretrained = getattr(model, "pretrained_cfg", None) or {}
    subset = timm.data.infer_imagenet_subset(model) if _IMAGENET.search(str(pretrained.get("tag") or "")) else None
    if subset is None:
        return tuple(str(number) for number in range(count))
    return tuple(timm.data.ImageNetInfo(subset).label_descriptions())


def open_image(file: bytes) -> Image:
    """Open an encoded image."""
    from PIL import Image

    return Image.open(BytesIO(file))
