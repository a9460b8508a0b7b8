"""Asks the source's own library about encoded images: its preprocessing, PyTorch, its labels. Heavy worker only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.errors import SourceError
from plansmith.pipelines.image.preprocessing import ImageRecipe
from plansmith.pipelines.image.processor_preprocessing import recipe_of
from plansmith.pipelines.image.timm_preprocessing import recipe_from_transform
from plansmith.sources.directory import read_config
from plansmith.sources.huggingface.processors import read_preprocessors
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    Pixels = NDArray[np.generic]

# timm's names of weights say what they were trained on last: "a1_in1k", "augreg_in21k_ft_in1k".
_IMAGENET = re.compile(r"(^|_)in(1k|12k|21k|22k)$")

_DIGITS = 6
"""Of an object's score behind the point."""

Ranked = tuple[list[str], list[float]]
"""Labels and their scores, the likeliest first."""


@dataclass(frozen=True)
class ImageSource:
    """A source that reads images.

    Args:
        recipe: its preprocessing, as the part for images does it.
        prepare: its preprocessing, as its own library does it: encoded images to the model's inputs by name.
        labels: of its classes, in their order; none where it has no classes.
        scoring: what makes scores of its logits.
        rank: the best labels of one encoded image, by its own library.
        words: that library.
        processor: its image processor; None of timm.
    """

    recipe: ImageRecipe
    prepare: Callable[[Sequence[bytes]], Mapping[str, Pixels]]
    labels: tuple[str, ...]
    scoring: Literal["softmax", "sigmoid", "none"]
    rank: Callable[[bytes, int], Ranked]
    words: str
    processor: Any = None


def timm_source(live: LoadedModel, folder: Path) -> ImageSource:
    """A model of timm.

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

    words = f"timm {timm.__version__}: its evaluation transform, PyTorch in FP32"
    return ImageSource(recipe, prepare, labels, "softmax", rank, words)


def transformers_source(live: LoadedModel, folder: Path, *, trust_remote_code: bool) -> ImageSource:
    """A model of transformers with an image processor.

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
        made = [processor(images=load_image(open_image(file)), return_tensors="pt") for file in files]
        pixels = torch.cat([one["pixel_values"] for one in made])
        # A processor that fills nothing up makes no mask, and the model then takes all for the image.
        whole = torch.ones_like(pixels[:1, 0], dtype=torch.int64)
        mask = torch.cat([one.get("pixel_mask", whole) for one in made])
        known = {"pixel_values": pixels.numpy(), "pixel_mask": mask.numpy()}
        return {tensor.name: known[tensor.name] for tensor in live.inputs.tensors if tensor.name in known}

    def rank(file: bytes, top_k: int) -> Ranked:
        kind: Any = transformers.ImageClassificationPipeline
        library = kind(model=module.model, image_processor=processor, device=module.model.device)
        found = library(open_image(file), top_k=top_k)
        return [one["label"] for one in found], [one["score"] for one in found]

    named = {int(number): str(name) for number, name in (config.id2label or {}).items()}
    labels = tuple(named.get(number, f"LABEL_{number}") for number in range(len(named)))
    words = f"transformers {transformers.__version__}: {type(processor).__name__}, PyTorch in FP32"
    return ImageSource(recipe_of(processor), prepare, labels, _scoring(config), rank, words, processor)


def infer_ranked(source: ImageSource, files: Sequence[bytes], top_k: int) -> Mapping[str, Pixels]:
    """The labels of encoded images, and their scores, by the source's own library."""
    import numpy as np

    found = [source.rank(file, top_k) for file in files]
    labels = np.empty((len(found), top_k), object)
    for row, (names, _) in enumerate(found):
        labels[row] = [name.encode() for name in names]
    return {"label": labels, "score": np.array([scores for _, scores in found], np.float32)}


def infer_objects(
    source: ImageSource, live: LoadedModel, files: Sequence[bytes], threshold: float
) -> Mapping[str, Pixels]:
    """The objects in encoded images, by transformers' object detection, as JSON."""
    import numpy as np
    import transformers

    module: Any = live.module
    kind: Any = transformers.ObjectDetectionPipeline
    library = kind(model=module.model, image_processor=source.processor, device=module.model.device)
    found = np.empty((len(files), 1), object)
    for row, file in enumerate(files):
        objects = library(open_image(file), threshold=threshold)
        told = [one | {"score": round(one["score"], _DIGITS)} for one in objects]
        found[row, 0] = json.dumps(told, ensure_ascii=False).encode()
    return {"objects": found}


def infer_class_maps(
    source: ImageSource, live: LoadedModel, files: Sequence[bytes], dtype: str
) -> Mapping[str, Pixels]:
    """The map of every encoded image by its processor's own postprocessing, and the classes in it as JSON."""
    from types import SimpleNamespace

    import numpy as np
    import torch
    from transformers.image_utils import load_image

    maps, segments = [], np.empty((len(files), 1), object)
    for row, file in enumerate(files):
        image = load_image(open_image(file))
        output = SimpleNamespace(logits=torch.from_numpy(live.ask(source.prepare([file]))["logits"]))
        size = [(image.height, image.width)]
        (found,) = source.processor.post_process_semantic_segmentation(output, target_sizes=size)
        maps.append(found.numpy().astype(dtype))
        told = [
            {"id": number, "label": source.labels[number], "pixels": int((found == number).sum())}
            for number in found.unique().tolist()
        ]
        segments[row, 0] = json.dumps(told, ensure_ascii=False).encode()
    return {"class_map": np.stack(maps), "segments": segments}


def _scoring(config: Any) -> Literal["softmax", "sigmoid", "none"]:
    """How transformers' image classification makes scores of logits."""
    if config.problem_type == "regression":
        return "none"
    return "sigmoid" if config.problem_type == "multi_label_classification" or config.num_labels == 1 else "softmax"


def _timm_labels(model: Any, folder: Path) -> tuple[str, ...]:
    """The names that the directory has, or ImageNet's where the weights were trained on it; else numbers."""
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
    """An encoded image."""
    from PIL import Image

    return Image.open(BytesIO(file))
