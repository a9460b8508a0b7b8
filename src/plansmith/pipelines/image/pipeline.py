"""Image pipelines for timm and transformers models. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.draft import Draft, DraftPart, labels_part
from plansmith.pipelines.image.kinds import IMAGES
from plansmith.pipelines.image.preprocessing import EQUAL, MOST_PIXELS, Agreement
from plansmith.pipelines.image.reference import (
    ImageSource,
    files_of,
    image_questions,
    infer_class_maps,
    infer_objects,
    infer_ranked,
    timm_source,
    transformers_source,
)
from plansmith.pipelines.image.zero_shot import (
    Candidates,
    candidate_inputs,
    infer_zero_shot,
    ranking_part,
    read_candidates,
    require_own_tokens,
    with_texts,
)
from plansmith.pipelines.served.images import ImagesStep
from plansmith.pipelines.served.postprocessing.objects import OBJECTS, ObjectsStep
from plansmith.pipelines.served.postprocessing.segmentation import CLASS_MAP, SEGMENTS, SegmentationStep
from plansmith.pipelines.served.requests import Refusal
from plansmith.records.model import BATCH, Component, OnnxModel, Tensor
from plansmith.records.pipeline import RawOutput
from plansmith.sources.huggingface.outputs import SCORES
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


IMAGE = "image"
"""The ensemble's input: encoded images."""

_RAW = Tensor(name=IMAGE, dtype="string", dims=(BATCH, 1))

_MASK = "pixel_mask"
"""The model's input that tells an image's pixels from what fills it up."""

_SIZES = Tensor(name="image_sizes", dtype="int32", dims=(BATCH, 2))
"""Height and width of every image as it was sent."""

_MOST_OBJECTS: dict[str, int | Literal["queries"] | None] = {
    "ConditionalDetrImageProcessor": 100,
    "DeformableDetrImageProcessor": 100,
    "DetrImageProcessor": None,
    "RTDetrImageProcessor": "queries",
    "YolosImageProcessor": None,
}
"""How many objects a processor of transformers finds at most, as `pipelines.served.postprocessing.objects` has it."""

_SEGMENTING = (
    "BeitImageProcessor",
    "MobileNetV2ImageProcessor",
    "MobileViTImageProcessor",
    "SegformerImageProcessor",
)
"""Processors of transformers whose semantic segmentation enlarges logits and takes the highest."""

_LEVELS = 256
"""Numbers of 8 bits."""

_MOST_MAPPED = 1 << 24
"""Pixels of an image that gets a map; the time that it takes grows with them."""

_POOLED = ("image_embeds", "pooler_output", "features")
"""Outputs that hold one vector of an image, the first that there is."""


@dataclass(frozen=True)
class _Behind:
    """Postprocessing: the parts behind a model, the client outputs, and the reference function.

    `library`: in words; `sizes`: whether a part wants to know how large images were sent; `most_pixels`: that these may
    have.
    """

    parts: tuple[DraftPart, ...]
    outputs: tuple[Tensor, ...]
    ask: Callable[[Arrays], Arrays]
    library: str
    sizes: bool = False
    most_pixels: int = MOST_PIXELS


@dataclass(frozen=True)
class _Model:
    """Model view: the model as the image parts see it; `candidates` are None if only an image is sent."""

    live: LoadedModel
    source: ImageSource
    component: Component
    options: PipelineOptions
    candidates: Candidates | None = None

    def own_outputs(self, *names: str) -> _Behind:
        """Return selected model outputs without postprocessing."""
        outputs = tuple(tensor for tensor in self.component.outputs if tensor.name in names)

        def ask(feed: Arrays) -> Arrays:
            inputs = self.source.prepare(list(files_of(feed, IMAGE)))
            answer = self.live.ask({**inputs, **(self.candidates.tokens(feed) if self.candidates else {})})
            return {name: answer[name] for name in names}

        return _Behind((), outputs, ask, "")


def plan_images(
    live: LoadedModel,
    folder: Path,
    options: PipelineOptions,
    onnx: OnnxModel,
    *,
    scheme: Literal["hf", "timm"],
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """Plan the pipeline of a model whose clients send images.

    Args:
        live: the source model in FP32.
        folder: its directory.
        options: what the spec says of the pipeline.
        onnx: the graph that is served, or the interface of the model that is served as PyTorch.
        scheme: of the source.
        task: that was asked for; empty: none.
        trust_remote_code: whether the model's own Python code may be run.

    Raises:
        SourceError: there is no preprocessing, or it does something that the part for images cannot.
        UsageError: the model does not make what the spec asks for, or takes more than images.
    """
    output = IMAGES.refuse(scheme, folder, options, task=task)
    component = onnx.components["model"]
    images, mask = _image_inputs(component, without=candidate_inputs(component))
    source = (
        timm_source(live, folder)
        if scheme == "timm"
        else transformers_source(live, folder, trust_remote_code=trust_remote_code)
    )
    _require_fitting(source, images)
    candidates = read_candidates(live, folder, options, onnx, task=task, trust_remote_code=trust_remote_code)
    model = _Model(live, source, component, options, candidates)
    questions = _questions(model, images, _max_batch(images, onnx), one_size=output == "segmentation")
    texts = [candidates] if candidates is not None else []
    behind = _BEHIND.get(output, _tensors)(model)
    return Draft(
        input="image",
        output=output,
        before=(_images_part(model, images, mask, behind), *(text_input.part() for text_input in texts)),
        after=behind.parts,
        inputs=(_RAW, *(text_input.raw for text_input in texts)),
        outputs=behind.outputs,
        questions=questions,
        ask=behind.ask,
        source=f"{source.description}{behind.library}",
        bounds=_bounds(source, images),
    )


def _questions(model: _Model, images: Tensor, max_batch: int, *, one_size: bool) -> dict[str, Arrays]:
    """Return requests by name whose preprocessing matches the source's own."""
    questions: dict[str, Arrays] = {**image_questions(IMAGE, max_batch=max_batch, one_size=one_size)}
    for name, feed in questions.items():
        _require_agreement(model.source, images, feed, name)
    if model.candidates is None:
        return questions
    questions = with_texts(questions, model.candidates.counts)
    require_own_tokens(model.candidates, questions)
    return questions


def _images_part(model: _Model, images: Tensor, mask: Tensor | None, behind: _Behind) -> DraftPart:
    """Return the part that turns encoded images into the model's inputs."""
    settings = model.source.recipe.settings(
        raw=IMAGE,
        name=images.name,
        dtype=images.dtype,
        mask=mask,
        sizes=_SIZES.name if behind.sizes else "",
        most_pixels=behind.most_pixels,
    )
    return DraftPart(
        name="images",
        step=ImagesStep,
        settings=settings,
        inputs=(_RAW,),
        outputs=(images, *([mask] if mask else []), *([_SIZES] if behind.sizes else [])),
        modules=("framing",),
        requirements=("pillow",),
    )


def _image_inputs(component: Component, *, without: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the model's image input, and its pixel mask if it has one."""
    first, *others = (tensor for tensor in component.inputs if tensor not in without)
    masks = [tensor for tensor in others if tensor.name == _MASK and len(tensor.dims) == 3]
    if len(masks) < len(others) or len(first.dims) != 4 or not first.dtype.startswith("float"):
        description = ", ".join(f"{t.name} {t.dtype} [{', '.join(map(str, t.dims))}]" for t in component.inputs)
        raise UsageError(
            f"pipeline.input is image, and the model takes {description}",
            remedy="name a task that images alone are enough for (`task`), or leave `pipeline` out",
        )
    return first, masks[0] if masks else None


def _max_batch(images: Tensor, onnx: OnnxModel) -> int:
    dim = images.dims[0]
    return dim if isinstance(dim, int) else onnx.axes[dim].max


def _bounds(source: ImageSource, images: Tensor) -> dict[str, float]:
    """Return tolerances for a source whose resize differs from that of the part."""
    recipe = source.recipe
    return {} if recipe.agreement == EQUAL else {images.name: recipe.agreement.mean * recipe.values_per_level}


def _require_fitting(source: ImageSource, images: Tensor) -> None:
    """Check that the source's preprocessed images fit the graph."""
    shape = (len(source.recipe.order), *(source.recipe.size or ()))
    fixed = tuple(size if isinstance(dim, str) else dim for dim, size in zip(images.dims[1:], shape, strict=False))
    if fixed == shape and len(shape) == 3:
        return
    raise SourceError(
        f"pipeline: images become {' x '.join(map(str, shape))}, and the model's {images.name} is"
        f" [{', '.join(map(str, images.dims))}]",
        remedy="export the model at the size of its processor (`shapes` in the spec)",
    )


def _require_agreement(source: ImageSource, images: Tensor, feed: Arrays, name: str) -> None:
    """Check that the image part agrees with the source's own preprocessing on one request."""
    import numpy as np

    settings = source.recipe.settings(raw=IMAGE, name=images.name, dtype="float32")
    with TemporaryDirectory() as folder:
        (answer,) = ImagesStep(settings, Path(folder)).answer([feed])
    if isinstance(answer, Refusal):
        raise SourceError(
            f"pipeline: the part for images refuses plansmith's own ({name}): {answer.message}",
            remedy="check that Pillow reads JPEG and PNG files here (python -m PIL)",
        )
    difference = distance(
        np.asarray(answer[images.name]), source.prepare(list(files_of(feed, IMAGE)))[images.name], source
    )
    allowed = source.recipe.agreement
    if difference.mean > allowed.mean or difference.largest > allowed.largest:
        raise SourceError(
            f"pipeline: {source.description.partition(',')[0]} does more than its settings say: the part for images is"
            f" {difference.mean:.3g} levels of 255 from it (mean; at most"
            f" {difference.largest:.3g}) for the request {name}",
            remedy="leave `pipeline` out and send what the processor makes",
        )


def distance(ours: NDArray[np.generic], own: NDArray[np.generic], source: ImageSource) -> Agreement:
    """Return the distance of the part's tensor from the source's own, in levels of 0 to 255, for the worst image."""
    import numpy as np

    levels = np.abs(ours.astype(np.float64) - own.astype(np.float64)) / source.recipe.values_per_level
    return Agreement(mean=float(levels.mean(axis=(1, 2, 3)).max()), largest=float(levels.max()))


def _labels(model: _Model) -> _Behind:
    logits = _output(model, ("logits",))
    names = model.source.labels
    if logits.dims[1] != len(names):
        raise SourceError(
            f"pipeline.output is labels, and the model has {logits.dims[1]} classes and {len(names)} names for them",
            remedy="mend id2label in config.json, or write output: tensors under `pipeline`",
        )
    part = labels_part(logits, names, scoring=model.source.scoring, top_k=model.options.top_k)
    top_k = min(model.options.top_k, len(names))
    return _Behind((part,), part.outputs, partial(_ranked, model.source, top_k), ", its best labels")


def _ranked(source: ImageSource, top_k: int, feed: Arrays) -> Arrays:
    return infer_ranked(source, list(files_of(feed, IMAGE)), top_k)


def _objects(model: _Model) -> _Behind:
    tensors = {tensor.name: tensor for tensor in model.component.outputs if len(tensor.dims) == 3}
    kind = type(model.source.processor).__name__.removesuffix("Pil")
    if not {"logits", "pred_boxes"} <= tensors.keys() or kind not in _MOST_OBJECTS:
        raise UsageError(
            "pipeline.output is objects, which needs logits and pred_boxes [batch, queries, …] and a processor that is"
            f" one of {', '.join(_MOST_OBJECTS)}, and the model has"
            f" {', '.join(t.name for t in model.component.outputs)} and {kind}",
            remedy="leave logits and pred_boxes among the spec's `outputs`, or write output: tensors under `pipeline`",
        )
    logits, boxes = tensors["logits"], tensors["pred_boxes"]
    queries = logits.dims[1]
    objects = Tensor(name=OBJECTS, dtype="string", dims=(BATCH, 1))
    part = DraftPart(
        name="objects",
        step=ObjectsStep,
        settings={
            "logits": logits.name,
            "boxes": boxes.name,
            "sizes": _SIZES.name,
            "labels": list(model.source.labels),
            "most": queries if _MOST_OBJECTS[kind] == "queries" else _MOST_OBJECTS[kind],
            "threshold": model.options.threshold,
        },
        inputs=(logits, boxes, _SIZES),
        outputs=(objects,),
        modules=("postprocessing.labels",),
    )

    def ask(feed: Arrays) -> Arrays:
        return infer_objects(model.source, model.live, list(files_of(feed, IMAGE)), model.options.threshold)

    return _Behind((part,), (objects,), ask, ", its object detection", sizes=True)


def _segmentation(model: _Model) -> _Behind:
    """Return a segmentation map in the image's size: 8-bit integers if they can hold all classes."""
    logits = next((t for t in model.component.outputs if t.name == "logits" and len(t.dims) == 4), None)
    kind, names = type(model.source.processor).__name__.removesuffix("Pil"), model.source.labels
    if logits is None or kind not in _SEGMENTING or logits.dims[1] != len(names):
        raise UsageError(
            "pipeline.output is segmentation, which needs logits [batch, classes, height, width], names of all classes"
            f" and a processor that is one of {', '.join(_SEGMENTING)}, and the model has"
            f" {', '.join(t.name for t in model.component.outputs)}, {len(names)} names and {kind}",
            remedy="leave logits among the spec's `outputs`, mend id2label in config.json, or write output: tensors"
            " under `pipeline`",
        )
    dtype = "uint8" if len(names) <= _LEVELS else "int32"
    outputs = (
        Tensor(name=CLASS_MAP, dtype=dtype, dims=(BATCH, "map_height", "map_width")),
        Tensor(name=SEGMENTS, dtype="string", dims=(BATCH, 1)),
    )
    part = DraftPart(
        name="segmentation",
        step=SegmentationStep,
        settings={"logits": logits.name, "sizes": _SIZES.name, "labels": list(names), "dtype": dtype},
        inputs=(logits, _SIZES),
        outputs=outputs,
        modules=("postprocessing.labels",),
    )

    def ask(feed: Arrays) -> Arrays:
        return infer_class_maps(model.source, model.live, list(files_of(feed, IMAGE)), dtype)

    return _Behind((part,), outputs, ask, ", its semantic segmentation", sizes=True, most_pixels=_MOST_MAPPED)


def _zero_shot(model: _Model) -> _Behind:
    """Rank the candidate texts sent with an image."""
    scores = next((t for t in model.component.outputs if t.name == SCORES and len(t.dims) == 2), None)
    if scores is None or model.candidates is None:
        sides = (model.component.inputs, model.component.outputs)
        inputs, outputs = (", ".join(tensor.name for tensor in side) for side in sides)
        raise UsageError(
            f"pipeline.output is zero-shot, which needs {SCORES} [batch, texts] of images that have texts of their own,"
            f" and the model takes {inputs} and gives {outputs}",
            remedy=f"leave `inputs` out of the spec, and {SCORES} among its `outputs`",
        )
    part = ranking_part(scores, model.candidates.raw)
    ask = infer_zero_shot(model.live, model.source, model.candidates, images=IMAGE)
    return _Behind((part,), part.outputs, ask, ", its zero-shot image classification")


def _embedding(model: _Model) -> _Behind:
    """Return the image embedding of the model itself, including spatial dims of size 1 if it keeps them."""
    return model.own_outputs(_output(model, _POOLED).name)


def _tensors(model: _Model) -> _Behind:
    return model.own_outputs(*(tensor.name for tensor in model.component.outputs))


def _output(model: _Model, names: tuple[str, ...]) -> Tensor:
    """Return the first of several outputs that has one row per image."""
    outputs = {tensor.name: tensor for tensor in model.component.outputs}
    for name in names:
        if name in outputs and (len(outputs[name].dims) == 2 or outputs[name].dims[2:] == (1, 1)):
            return outputs[name]
    listed = ", ".join(f"{t.name} [{', '.join(map(str, t.dims))}]" for t in outputs.values())
    raise UsageError(
        f"pipeline.output is {model.options.output or 'told by the model'}, which needs an output {' or '.join(names)}"
        f" with one row for each image, and the model's are {listed}",
        remedy="leave it among the spec's `outputs`, or write output: tensors under `pipeline`",
    )


_BEHIND: dict[RawOutput, Callable[[_Model], _Behind]] = {
    "labels": _labels,
    "embedding": _embedding,
    "objects": _objects,
    "segmentation": _segmentation,
    "zero-shot": _zero_shot,
}
"""What follows a model, by what the pipeline answers with; of other tensors nothing does."""
