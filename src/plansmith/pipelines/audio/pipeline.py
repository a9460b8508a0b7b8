"""Audio pipelines for transformers models. Runs in the worker."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.audio.kinds import SOUNDS
from plansmith.pipelines.draft import Draft, DraftPart, Scoring, labels_part
from plansmith.pipelines.image.reference import bytes_array, files_of
from plansmith.pipelines.served.postprocessing.transcript import TEXT, TranscriptStep, frames_of
from plansmith.pipelines.served.sound import SoundStep, read_sound
from plansmith.records.model import BATCH, Component, OnnxModel, Tensor
from plansmith.sources.huggingface.processors import Preprocessors, read_preprocessors
from plansmith.sources.loaded_model import LoadedModel
from plansmith.system.libraries import require_library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


FILTERS_FILE = "mel_filters.npy"

_KALDI_FRAME, _KALDI_HOP, _KALDI_BINS, _KALDI_LOWEST = 400, 160, 512, 20
_KALDI_FLOOR = 1.192092955078125e-07

AUDIO = "audio"
"""The ensemble's input: sound files."""

_LONGEST_SECONDS = 3600.0
"""Of a question: more than any has."""

_CTC_TOKENIZER = "Wav2Vec2CTCTokenizer"
_LENGTHS = 97
"""Of sounds that the count of frames is checked for."""

_Behind = tuple[tuple[DraftPart, ...], tuple[Tensor, ...], "Callable[[Arrays], Arrays]"]


@dataclass(frozen=True)
class SoundRecipe:
    """Audio preprocessing recipe of a feature extractor.

    Args:
        rate: in Hz.
        most: samples after which sound is cut off; None: it is not.
        fewest: samples that one frame takes.
        normalized: whether a wave gets the mean 0 and the variance 1.
        spectrum: settings of `pipeline.served.sound.spectrum_of`; None: the wave is the model's input.
        filters: of the spectrum.
    """

    rate: int
    most: int | None
    fewest: int
    normalized: bool
    spectrum: Mapping[str, Any] | None = None
    filters: NDArray[np.generic] | None = None


def sound_recipe_of(extractor: Any) -> SoundRecipe:
    """Return the steps that a feature extractor applies to one audio input.

    Raises:
        SourceError: it is of no kind that is known here, or does something that the part for sound cannot.
    """
    name = type(extractor).__name__
    read = {
        "Wav2Vec2FeatureExtractor": _of_waves,
        "WhisperFeatureExtractor": _of_whisper,
        "ASTFeatureExtractor": _of_ast,
    }.get(name)
    if read is None or not type(extractor).__module__.startswith("transformers.models."):
        raise SourceError(
            f"pipeline: the part for sound cannot do what {name} does",
            remedy="leave `pipeline` out and send what the feature extractor makes",
        )
    if getattr(extractor, "dither", 0.0) or getattr(extractor, "padding_value", 0.0):
        raise SourceError(
            f"pipeline: {name} adds noise or pads with other values than 0, which the part for sound cannot do",
            remedy="set dither and padding_value to 0 in preprocessor_config.json, or leave `pipeline` out",
        )
    return read(extractor)


def _of_waves(extractor: Any) -> SoundRecipe:
    return SoundRecipe(rate=int(extractor.sampling_rate), most=None, fewest=1, normalized=bool(extractor.do_normalize))


def _of_whisper(extractor: Any) -> SoundRecipe:
    samples, hop = int(extractor.n_samples), int(extractor.hop_length)
    spectrum = {
        "filters": FILTERS_FILE,
        "padded": samples,
        "centred": True,
        "frame": int(extractor.n_fft),
        "hop": hop,
        "bins": int(extractor.n_fft),
        "flat": False,
        "emphasis": 0.0,
        "periodic": True,
        "floor": 1e-10,
        "log": "log10",
        "depth": 8.0,
        "frames": samples // hop,
        "mean": -4.0,
        "std": 4.0,
        "frames_first": False,
    }
    rate = int(extractor.sampling_rate)
    return SoundRecipe(rate, samples, 1, normalized=False, spectrum=spectrum, filters=extractor.mel_filters)


def _of_ast(extractor: Any) -> SoundRecipe:
    """Return the AST recipe as computed without torchaudio; the filter banks are the same as with it."""
    from transformers.audio_utils import mel_filter_bank

    rate, frames = int(extractor.sampling_rate), int(extractor.max_length)
    spectrum = {
        "filters": FILTERS_FILE,
        "padded": 0,
        "centred": False,
        "frame": _KALDI_FRAME,
        "hop": _KALDI_HOP,
        "bins": _KALDI_BINS,
        "flat": True,
        "emphasis": 0.97,
        "periodic": False,
        "floor": _KALDI_FLOOR,
        "log": "log",
        "depth": None,
        "frames": frames,
        "mean": float(extractor.mean) if extractor.do_normalize else 0.0,
        "std": 2 * float(extractor.std) if extractor.do_normalize else 1.0,
        "frames_first": True,
    }
    filters = mel_filter_bank(
        num_frequency_bins=_KALDI_BINS // 2 + 1,
        num_mel_filters=int(extractor.num_mel_bins),
        min_frequency=_KALDI_LOWEST,
        max_frequency=rate // 2,
        sampling_rate=rate,
        norm=None,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    most = (frames - 1) * _KALDI_HOP + _KALDI_FRAME
    return SoundRecipe(rate, most, _KALDI_FRAME, normalized=False, spectrum=spectrum, filters=filters)


_PCM, _FLOAT = 1, 3


def sound_questions(
    raw: str, *, rate: int, fewest: int, most: int, max_batch: int, mixed: bool
) -> dict[str, dict[str, NDArray[np.generic]]]:
    """Return audio requests by name; deterministic.

    Args:
        raw: name of the tensor of WAV files.
        rate: of the model, in Hz.
        fewest: samples that a sound has to have.
        most: samples that a sound may have.
        max_batch: how many sounds a request may have.
        mixed: whether sounds of one request may be of different lengths.
    """
    usual = min(most, max(fewest, rate))
    long, short = min(most, 2 * usual), max(fewest, usual // 2)
    requests = {
        "wav": [wav(drawn_sound(usual, rate, 1), rate)],
        "short": [wav(drawn_sound(short, rate, 2), rate)],
        "long": [wav(drawn_sound(long, rate, 3), rate)],
        "batch": [wav(drawn_sound(usual, rate, seed), rate) for seed in (4, 5, 6)],
        "stereo": [wav(drawn_sound(usual, rate, 7, channels=2), rate, bits=24)],
        "float": [wav(drawn_sound(usual, rate, 8), rate, bits=32, floats=True)],
        "bytes": [wav(drawn_sound(usual, rate, 9), rate, bits=8)],
    }
    if mixed and max_batch > 1:
        requests["mixed"] = [wav(drawn_sound(count, rate, count), rate) for count in (short, usual, long)]
    return {name: {raw: bytes_array(files[:max_batch])} for name, files in requests.items()}


def compressed_questions(raw: str, *, rate: int, fewest: int, most: int) -> dict[str, dict[str, NDArray[np.generic]]]:
    """Return requests with FLAC and MP3 files; arguments as for `sound_questions`."""
    import numpy as np
    import soundfile

    count = min(most, max(fewest, rate))
    questions = {}
    for seed, name in ((10, "flac"), (11, "mp3")):
        out = BytesIO()
        soundfile.write(out, drawn_sound(count, rate, seed, channels=2).astype(np.float32), rate, format=name.upper())
        questions[name] = {raw: bytes_array([out.getvalue()])}
    return questions


def drawn_sound(count: int, rate: int, seed: int, *, channels: int = 1) -> NDArray[np.float64]:
    """Generate samples [count, channels] from -1 to 1: tones that rise and fade, and some noise."""
    import numpy as np

    chance = np.random.default_rng(seed)
    times = np.arange(count)[:, None] / rate
    start, rise, fade = (chance.uniform(low, high, channels) for low, high in ((100, 900), (0, 400), (0.2, 2)))
    tones = np.sin(2 * np.pi * (start + rise * times) * times) * np.exp(-fade * times)
    return 0.7 * tones + 0.05 * np.clip(chance.standard_normal((count, channels)), -3, 3)


def wav(samples: NDArray[np.float64], rate: int, *, bits: int = 16, floats: bool = False) -> bytes:
    """Encode samples [count, channels] as a WAV file: PCM, or floats."""
    import numpy as np

    channels = samples.shape[1]
    if floats:
        data = samples.astype(f"<f{bits // 8}").tobytes()
    else:
        whole = np.clip(np.round(samples * (1 << (bits - 1))), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        wide = (whole.astype(np.int64) + (128 if bits == 8 else 0)).astype("<i8")
        data = wide.reshape(-1, 1).view(np.uint8)[:, : bits // 8].tobytes()
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", _FLOAT if floats else _PCM, channels, rate, rate * block, block, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@dataclass(frozen=True)
class _Model:
    """Model view: the model as the audio parts see it.

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
    """Plan the pipeline of a model whose clients send audio files.

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
        require_library("soundfile", "audio", purpose="pipeline: {compressed_audio: true} needs it; WAV files do not")
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
        length_range = None if isinstance(length, int) else onnx.axes[length]
        fewest, most = (length_range.min, length_range.max) if length_range else (int(length), int(length))
    else:
        _require_fitting(recipe, main)
    mask = masks[0] if masks else None
    return _Model(live, component, extractor, tokenizer, recipe, main, mask, fewest, most)


def _require_fitting(recipe: SoundRecipe, main: Tensor) -> None:
    assert recipe.spectrum is not None
    assert recipe.filters is not None
    sizes = [recipe.filters.shape[1], recipe.spectrum["frames"]]
    sizes = sizes[::-1] if recipe.spectrum["frames_first"] else sizes
    if [size if isinstance(dim, str) else dim for dim, size in zip(main.dims[1:], sizes, strict=False)] != sizes:
        raise SourceError(
            f"pipeline: sounds become {sizes}, and the model's {main.name} is [{', '.join(map(str, main.dims))}]",
            remedy="save the feature extractor that the model was trained with beside it",
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
        answers = [library(wave, top_k=top_k) for wave in _waves(feed, model.recipe.rate)]
        labels = np.empty((len(answers), top_k), object)
        for row, best in enumerate(answers):
            labels[row] = [entry["label"].encode() for entry in best]
        return {
            "label": labels,
            "score": np.array([[entry["score"] for entry in best] for best in answers], np.float32),
        }

    return (part,), part.outputs, ask


def _transcript(model: _Model, options: PipelineOptions) -> _Behind:
    """Decode a transcript with greedy CTC."""
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
        transcripts = [library(wave)["text"] for wave in _waves(feed, model.recipe.rate)]
        return {TEXT: bytes_array([text.encode() for text in transcripts])}

    return (part,), (text,), ask


def _named(tokenizer: Any) -> str:
    return "no tokenizer" if tokenizer is None else type(tokenizer).__name__


def _convolutions(model: _Model) -> list[tuple[int, int]]:
    """Return kernel and stride of each convolution that turns samples into frames.

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
    """Return the model's own outputs of all rows in one batch, padded accordingly."""
    del options

    def ask(feed: Arrays) -> Arrays:
        waves = _waves(feed, model.recipe.rate)
        padding = {} if model.recipe.spectrum else {"padding": True}
        features = model.extractor(waves, sampling_rate=model.recipe.rate, return_tensors="np", **padding)
        inputs = {tensor.name: features[tensor.name].astype(tensor.dtype) for tensor in model.live.inputs.tensors}
        answer = model.live.ask(inputs)
        return {tensor.name: answer[tensor.name] for tensor in model.component.outputs}

    return (), model.component.outputs, ask


def _waves(feed: Arrays, rate: int) -> Sequence[NDArray[np.generic]]:
    """Return the samples of the requests: files are decoded as the part does, and have the model's rate."""
    read = [read_sound(file, _LONGEST_SECONDS, compressed=True) for file in files_of(feed, AUDIO)]
    assert {file_rate for _, file_rate in read} == {rate}
    return [samples for samples, _ in read]
