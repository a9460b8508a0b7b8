"""The pipeline around a model of transformers that hears sounds. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import EnvironmentFault, SourceError, UsageError
from plansmith.pipelines.audio.kinds import SOUNDS
from plansmith.pipelines.audio.preprocessing import FILTERS_FILE, SoundRecipe, sound_recipe_of
from plansmith.pipelines.audio.samples import compressed_questions, sound_questions
from plansmith.pipelines.draft import Draft, DraftPart
from plansmith.pipelines.image.samples import bytes_array, files_of
from plansmith.pipelines.labels import Scoring, labels_part
from plansmith.pipelines.served.postprocessing.transcript import TEXT, TranscriptStep, frames_of
from plansmith.pipelines.served.sound import SoundStep, read_sound
from plansmith.records.model import BATCH, Component, OnnxModel, Tensor
from plansmith.sources.huggingface.processors import Preprocessors, read_preprocessors
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

AUDIO = "audio"
"""The ensemble's input: sound files."""

_LONGEST_SECONDS = 3600.0
"""Of a question: more than any has."""

_CTC_TOKENIZER = "Wav2Vec2CTCTokenizer"
_LENGTHS = 97
"""Of sounds that the count of frames is checked for."""


@dataclass(frozen=True)
class _Model:
    """The model as the parts hear it.

    `main` is the input that is made of sounds; `extractor` and `tokenizer` are the source's own, the latter None where
    it has none.
    """

    live: LoadedModel
    component: Component
    extractor: Any
    tokenizer: Any
    recipe: SoundRecipe
    main: Tensor
    mask: Tensor | None
    fewest: int
    most: int


def plan_sound(
    live: LoadedModel,
    folder: Path,
    options: PipelineOptions,
    onnx: OnnxModel,
    *,
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """What stands around a model so that clients can send sound files.

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
        EnvironmentFault: compressed files are to be read, and what reads them is not installed.
    """
    import transformers

    if options.compressed_audio:
        _require_soundfile()
    output = SOUNDS.refuse("hf", folder, options, task=task)
    preprocessors = read_preprocessors(folder, trust_remote_code=trust_remote_code)
    model = _read(live, onnx, preprocessors)
    behind = {"labels": _labels, "transcript": _transcript}.get(output, _tensors)
    parts, outputs, ask = behind(model, options)
    dim = model.main.dims[0]
    sizes = {"rate": model.recipe.rate, "fewest": model.fewest, "most": model.most}
    questions = sound_questions(
        AUDIO,
        **sizes,
        max_batch=dim if isinstance(dim, int) else onnx.axes[dim].max,
        mixed=model.mask is not None,
    )
    if options.compressed_audio:
        questions |= compressed_questions(AUDIO, **sizes)
    raw = Tensor(name=AUDIO, dtype="string", dims=(BATCH, 1))
    return Draft(
        input="audio",
        output=output,
        before=(_sound_part(model, raw, compressed=options.compressed_audio),),
        after=parts,
        inputs=(raw,),
        outputs=outputs,
        questions=questions,
        ask=ask,
        source=f"transformers {transformers.__version__}: {type(model.extractor).__name__}, PyTorch in FP32",
    )


def _read(live: LoadedModel, onnx: OnnxModel, preprocessors: Preprocessors) -> _Model:
    extractor, tokenizer = preprocessors.sound, preprocessors.tokenizer
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
    mask = masks[0] if masks else None
    return _Model(live, component, extractor, tokenizer, recipe, main, mask, fewest, most)


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


def _require_soundfile() -> None:
    if find_spec("soundfile") is None:
        raise EnvironmentFault(
            "pipeline: {compressed_audio: true} needs the library soundfile, which is not installed",
            remedy="pip install 'plansmith[audio]', or leave compressed_audio out and send WAV files",
        )


def _sound_part(model: _Model, raw: Tensor, *, compressed: bool) -> DraftPart:
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
            "compressed": compressed,
            "normalized": recipe.normalized,
            "spectrum": dict(recipe.spectrum) if recipe.spectrum else None,
        },
        inputs=(raw,),
        outputs=(model.main, *([model.mask] if model.mask else [])),
        modules=("wav", *(["compressed"] if compressed else [])),
        requirements=("soundfile",) if compressed else (),
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


def _transcript(model: _Model, options: PipelineOptions) -> _Behind:
    """Greedy CTC."""
    import transformers

    del options
    module: Any = model.live.module
    tokenizer = model.tokenizer
    logits = next((tensor for tensor in model.component.outputs if tensor.name == "logits"), None)
    if logits is None or len(logits.dims) != 3 or type(tokenizer).__name__ != _CTC_TOKENIZER:
        raise UsageError(
            f"pipeline.output is transcript, which needs logits [batch, frames, tokens] and a {_CTC_TOKENIZER}, and the"
            f" model has {', '.join(t.name for t in model.component.outputs)} and {_named(tokenizer)}",
            remedy="leave logits among the spec's `outputs`, or write output: tensors under `pipeline`",
        )
    size = logits.dims[2] if isinstance(logits.dims[2], int) else module.model.config.vocab_size
    text = Tensor(name=TEXT, dtype="string", dims=(BATCH, 1))
    part = DraftPart(
        name="transcript",
        step=TranscriptStep,
        settings={
            "logits": logits.name,
            "mask": model.mask.name if model.mask else "",
            "convolutions": _convolutions(model) if model.mask else [],
            "tokens": tokenizer.convert_ids_to_tokens(list(range(size))),
            "blank": tokenizer.pad_token,
            "delimiter": tokenizer.word_delimiter_token,
            "space": tokenizer.replace_word_delimiter_char,
            "lower": bool(tokenizer.do_lower_case),
            "cleaned": bool(tokenizer.clean_up_tokenization_spaces),
        },
        inputs=(logits, *([model.mask] if model.mask else [])),
        outputs=(text,),
        modules=("postprocessing.labels", "postprocessing.decoding"),
    )
    kind: Any = transformers.AutomaticSpeechRecognitionPipeline

    def ask(feed: Arrays) -> Arrays:
        library = kind(
            model=module.model, feature_extractor=model.extractor, tokenizer=tokenizer, device=module.model.device
        )
        found = [library(wave)["text"] for wave in _waves(feed, model.recipe.rate)]
        return {TEXT: bytes_array([text.encode() for text in found])}

    return (part,), (text,), ask


def _named(tokenizer: Any) -> str:
    return "no tokenizer" if tokenizer is None else type(tokenizer).__name__


def _convolutions(model: _Model) -> list[tuple[int, int]]:
    """Kernel and stride of each convolution that makes frames of samples.

    Raises:
        UsageError: the model makes another number of frames than they do.
    """
    import numpy as np
    import torch

    module: Any = model.live.module
    config = module.model.config
    layers = list(zip(getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ()), strict=True))
    lengths = np.linspace(model.fewest, model.most, _LENGTHS).astype(np.int64)
    count = getattr(module.model, "_get_feat_extract_output_lengths", None)
    if count is None or count(torch.from_numpy(lengths)).tolist() != frames_of(lengths, layers).tolist():
        raise UsageError(
            "pipeline.output is transcript, and which of the model's frames belong to a padded sound is not known",
            remedy="set return_attention_mask to false in preprocessor_config.json, so that sounds of one request have"
            " one length, or write output: tensors under `pipeline`",
        )
    return layers


def _tensors(model: _Model, options: PipelineOptions) -> _Behind:
    """The model's own outputs, of all rows at once, as they are padded then."""
    del options

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
    read = [read_sound(file, _LONGEST_SECONDS, compressed=True) for file in files_of(feed, AUDIO)]
    assert {found for _, found in read} == {rate}
    return [samples for samples, _ in read]
