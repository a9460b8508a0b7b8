"""The pipeline around a model of transformers that hears sounds. Runs in the heavy worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.audio.kinds import SOUNDS
from plansmith.pipelines.audio.preprocessing import FILTERS_FILE, SoundRecipe, sound_recipe_of
from plansmith.pipelines.audio.samples import sound_questions
from plansmith.pipelines.draft import Draft, DraftPart
from plansmith.pipelines.image.samples import files_of
from plansmith.pipelines.labels import Scoring, labels_part
from plansmith.pipelines.served.sound import SoundStep
from plansmith.pipelines.served.wav import read_wav
from plansmith.records.model import BATCH, Component, OnnxModel, Tensor
from plansmith.sources.huggingface.processors import read_preprocessors
from plansmith.sources.loaded_model import LiveModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

AUDIO = "audio"
"""The ensemble's input: WAV files."""


@dataclass(frozen=True)
class _Model:
    """The model as the parts hear it; `main` is the input that is made of sounds, `extractor` the source's own."""

    live: LiveModel
    component: Component
    extractor: Any
    recipe: SoundRecipe
    main: Tensor
    mask: Tensor | None
    fewest: int
    most: int


def plan_sound(
    live: LiveModel,
    folder: Path,
    options: PipelineOptions,
    onnx: OnnxModel,
    *,
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """What stands around a model so that clients can send WAV files.

    Args:
        live: the source model in FP32.
        folder: its directory.
        options: what the spec says of the pipeline.
        onnx: the graph that is served, or the interface of the model that is served as PyTorch.
        task: that was asked for; empty: none.
        trust_remote_code: whether the model's own Python code may be run.

    Raises:
        SourceError: there is no feature extractor, or it does something that the part for sound cannot.
        UsageError: the model does not make what the spec asks for, or takes more than sounds.
    """
    import transformers

    output = SOUNDS.refuse("hf", folder, options, task=task)
    extractor = read_preprocessors(folder, trust_remote_code=trust_remote_code).sound
    model = _read(live, onnx, extractor)
    parts, outputs, ask = _labels(model, options) if output == "labels" else _tensors(model)
    dim = model.main.dims[0]
    raw = Tensor(name=AUDIO, dtype="string", dims=(BATCH, 1))
    return Draft(
        input="audio",
        output=output,
        before=(_sound_part(model, raw),),
        after=parts,
        inputs=(raw,),
        outputs=outputs,
        questions=sound_questions(
            AUDIO,
            rate=model.recipe.rate,
            fewest=model.fewest,
            most=model.most,
            max_batch=dim if isinstance(dim, int) else onnx.axes[dim].max,
        ),
        ask=ask,
        source=f"transformers {transformers.__version__}: {type(extractor).__name__}, PyTorch in FP32",
    )


def _read(live: LiveModel, onnx: OnnxModel, extractor: Any) -> _Model:
    component, recipe = onnx.components["model"], sound_recipe_of(extractor)
    main, *others = component.inputs
    masks = [tensor for tensor in others if tensor.name == onnx.mask_input]
    if len(masks) < len(others) or main.name != extractor.model_input_names[0] or (masks and recipe.spectrum):
        raise UsageError(
            f"pipeline.input is audio, and the model takes {', '.join(tensor.name for tensor in component.inputs)}",
            remedy="name a task that sounds alone are enough for (`task`), or leave `pipeline` out",
        )
    fewest, most = recipe.fewest, recipe.most or 0
    if recipe.spectrum is None:
        length = main.dims[1]
        known = None if isinstance(length, int) else onnx.axes[length]
        fewest, most = (known.min, known.max) if known else (int(length), int(length))
    else:
        _require_fitting(recipe, main)
    return _Model(live, component, extractor, recipe, main, masks[0] if masks else None, fewest, most)


def _require_fitting(recipe: SoundRecipe, main: Tensor) -> None:
    assert recipe.spectrum is not None
    assert recipe.filters is not None
    made = [recipe.filters.shape[1], recipe.spectrum["frames"]]
    made = made[::-1] if recipe.spectrum["frames_first"] else made
    if [size if isinstance(dim, str) else dim for dim, size in zip(main.dims[1:], made, strict=False)] != made:
        raise SourceError(
            f"pipeline: sounds become {made}, and the model's {main.name} is [{', '.join(map(str, main.dims))}]",
            remedy="save the feature extractor that the model was trained with beside it",
        )


def _sound_part(model: _Model, raw: Tensor) -> DraftPart:
    recipe = model.recipe

    def write(folder: Path) -> None:
        import numpy as np

        if recipe.filters is not None:
            np.save(folder / FILTERS_FILE, recipe.filters)

    return DraftPart(
        name="sound",
        step=SoundStep,
        settings={
            "input": raw.name,
            "output": model.main.name,
            "mask": model.mask.name if model.mask else "",
            "dtype": model.main.dtype,
            "mask_dtype": model.mask.dtype if model.mask else "",
            "rate": recipe.rate,
            "fewest": model.fewest,
            "most": model.most,
            "normalized": recipe.normalized,
            "spectrum": dict(recipe.spectrum) if recipe.spectrum else None,
        },
        inputs=(raw,),
        outputs=(model.main, *([model.mask] if model.mask else [])),
        modules=("wav",),
        write=write,
    )


_Behind = tuple[tuple[DraftPart, ...], tuple[Tensor, ...], "Callable[[Arrays], Arrays]"]


def _labels(model: _Model, options: PipelineOptions) -> _Behind:
    import numpy as np
    import transformers

    module: Any = model.live.module
    config = module.model.config
    logits = next((tensor for tensor in model.component.outputs if tensor.name == "logits"), None)
    if logits is None or len(logits.dims) != 2:
        raise UsageError(
            "pipeline.output is labels, and the model has no logits [batch, classes]",
            remedy="leave logits among the spec's `outputs`, or write output: tensors under `pipeline`",
        )
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    scoring: dict[str | None, Scoring] = {"regression": "none", "multi_label_classification": "sigmoid"}
    part = labels_part(logits, names, scoring=scoring.get(config.problem_type, "softmax"), top_k=options.top_k)
    kind: Any = transformers.AudioClassificationPipeline
    top_k = min(options.top_k, len(names))

    def ask(feed: Arrays) -> Arrays:
        library = kind(model=module.model, feature_extractor=model.extractor, device=module.model.device)
        found = [library(wave, top_k=top_k) for wave in _waves(feed, model.recipe.rate)]
        labels = np.empty((len(found), top_k), object)
        for row, best in enumerate(found):
            labels[row] = [one["label"].encode() for one in best]
        return {"label": labels, "score": np.array([[one["score"] for one in best] for best in found], np.float32)}

    return (part,), part.outputs, ask


def _tensors(model: _Model) -> _Behind:
    """The model's own outputs, of all rows at once, as they are padded then."""

    def ask(feed: Arrays) -> Arrays:
        waves = _waves(feed, model.recipe.rate)
        padding = {} if model.recipe.spectrum else {"padding": True}
        made = model.extractor(waves, sampling_rate=model.recipe.rate, return_tensors="np", **padding)
        inputs = {tensor.name: made[tensor.name].astype(tensor.dtype) for tensor in model.live.inputs.tensors}
        answer = model.live.ask(inputs)
        return {tensor.name: answer[tensor.name] for tensor in model.component.outputs}

    return (), model.component.outputs, ask


def _waves(feed: Arrays, rate: int) -> Sequence[NDArray[np.generic]]:
    """The questions' samples: files are read as the part reads them, and are of the model's rate."""
    read = [read_wav(file) for file in files_of(feed, AUDIO)]
    assert {found for _, found in read} == {rate}
    return [samples for samples, _ in read]
