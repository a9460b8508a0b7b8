"""WAV files become what transformers' feature extractors make of their samples, and then the labels of its pipeline."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import transformers

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import EnvironmentFault, SourceError, UsageError
from plansmith.pipelines.audio.kinds import SOUNDS
from plansmith.pipelines.audio.pipeline import AUDIO, FILTERS_FILE, drawn_sound, plan_sound, sound_recipe_of, wav
from plansmith.pipelines.draft import write_part
from plansmith.pipelines.image.reference import bytes_array
from plansmith.pipelines.served.requests import Refusal
from plansmith.pipelines.served.sound import SoundStep
from plansmith.pipelines.served.wav import read_wav, resampled

from ...support.models.architectures import IMAGE, SIZES, SPEECH, WHISPER, load, save
from ...support.pipelines.texts import Served
from ..image.test_plan_images import graph, require_near

RATE = 16_000
waves: Any = transformers.Wav2Vec2FeatureExtractor
whisper: Any = transformers.WhisperFeatureExtractor
ast: Any = transformers.ASTFeatureExtractor

EXTRACTORS: dict[str, Any] = {
    "wave": waves,
    "wave as it is": lambda: waves(do_normalize=False),
    "whisper": whisper,
    "whisper of 128 mels": lambda: whisper(feature_size=128, chunk_length=5),
    "ast": lambda: ast(num_mel_bins=64),
    "short ast": lambda: ast(max_length=64, num_mel_bins=16, do_normalize=False),
}
pytestmark = pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values")


def ask_part(extractor: Any, folder: Path, *files: bytes) -> Any:
    """What the part answers to one request: the model's input, or a refusal."""
    recipe = sound_recipe_of(extractor)
    if recipe.filters is not None:
        np.save(folder / FILTERS_FILE, recipe.filters)
    settings = {
        "input": AUDIO,
        "output": "made",
        "mask": "",
        "dtype": "float32",
        "mask_dtype": "",
        "rate": recipe.rate,
        "fewest": recipe.fewest,
        "most": recipe.most or 20 * RATE,
        "compressed": False,
        "normalized": recipe.normalized,
        "spectrum": recipe.spectrum,
    }
    (answer,) = SoundStep(settings, folder).answer([{AUDIO: bytes_array(files)}])
    return answer["made"] if isinstance(answer, dict) else answer


@pytest.mark.parametrize("samples", [1_601, 16_000, 48_123, 200_000])
@pytest.mark.parametrize("name", EXTRACTORS)
def test_sound_matches_feature_extractor(name: str, samples: int, tmp_path: Path) -> None:
    """A sound becomes what the feature extractor makes."""
    extractor = EXTRACTORS[name]()
    file = wav(drawn_sound(samples, RATE, 1), RATE)
    heard, _ = read_wav(file)

    result = ask_part(extractor, tmp_path, file)

    own = extractor(heard, sampling_rate=RATE, return_tensors="np")[extractor.model_input_names[0]]
    assert result.shape == own.shape
    require_near(result, own, atol=1e-4)


@pytest.mark.parametrize(
    ("bits", "floats", "channels", "off"),
    [
        (8, False, 1, 1 / 256),
        (16, False, 2, 1 / 65536),
        (24, False, 2, 1e-7),
        (32, False, 1, 1e-7),
        (32, True, 1, 1e-7),
        (64, True, 3, 1e-7),
    ],
)
def test_wav_kinds_are_mixed_down(bits: int, floats: bool, channels: int, off: float) -> None:
    """Every kind of WAV file is read and mixed down."""
    samples = drawn_sound(999, 22_050, 2, channels=channels)

    heard, rate = read_wav(wav(samples, 22_050, bits=bits, floats=floats))

    assert rate == 22_050
    assert heard.dtype == np.float32
    require_near(heard, samples.mean(axis=1), atol=off * 1.01)


def test_extensible_wav_is_read() -> None:
    """Other chunks and the extensible form are read."""
    plain = wav(drawn_sound(500, RATE, 3), RATE)
    note = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    with_notes = plain[:12] + note + plain[12:]
    form = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, RATE, 2 * RATE, 2, 16, 22, 16, 4, 1) + bytes(14)
    extensible = plain[:12] + b"fmt " + struct.pack("<I", 40) + form + plain[36:]

    for file in (with_notes, extensible):
        assert np.array_equal(read_wav(file)[0], read_wav(plain)[0])


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 44_101, 48_000, 96_000])
def test_resampling_keeps_shared_band(rate: int) -> None:
    """Tones that both hold are kept to a thousandth; scipy's own resampling, with a longer filter, hears the same."""
    times, target_times = np.arange(2 * rate) / rate, np.arange(2 * RATE) / RATE
    tones = [(0.5, 440.0), (0.2, 1_500.0), (0.1, 2_900.0)]
    sound = sum(loud * np.sin(2 * np.pi * tone * times) for loud, tone in tones)
    own = sum(loud * np.sin(2 * np.pi * tone * target_times) for loud, tone in tones)

    result = resampled(np.asarray(sound, np.float32), rate, RATE)

    assert len(result) == 2 * RATE
    require_near(result[200:-200], np.asarray(own)[200:-200], atol=1.5e-3)
    divisor = math.gcd(rate, RATE)
    poly = scipy.signal.resample_poly(np.asarray(sound), RATE // divisor, rate // divisor)
    require_near(result[200:-200], poly[200 : len(result) - 200], atol=5e-3)


def test_resampling_folds_nothing_in() -> None:
    """But for less than a two-hundredth: 46 dB."""
    times = np.arange(48_000) / 48_000
    result = resampled(np.sin(2 * np.pi * 11_000 * times).astype(np.float32), 48_000, RATE)
    assert np.abs(result[200:-200]).max() < 5e-3


GOOD = wav(drawn_sound(4_000, RATE, 4), RATE)
HOSTILE = {
    "no bytes": (b"", "it is no WAV file"),
    "an MP3": (b"ID3\x04" + bytes(99), "it is no WAV file"),
    "a header alone": (GOOD[:40], "it is damaged or cut off"),
    "half": (GOOD[:4_000], "it is cut off: 3956 of 8000 bytes of sound"),
    "no samples": (wav(np.zeros((0, 1)), RATE), "it has no sound"),
    "no rate": (GOOD[:24] + bytes(4) + GOOD[28:], "it has 1 channels of 16 bits at 0 Hz"),
    "a rate of 4 GHz": (GOOD[:24] + b"\xff" * 4 + GOOD[28:], "at 4294967295 Hz"),
    "many channels": (GOOD[:22] + b"\xff\xff" + GOOD[24:], "it has 65535 channels"),
    "compressed": (GOOD[:20] + b"\x11\0" + GOOD[22:], "samples of kind 17 with 16 bits"),
    "no numbers": (wav(np.full((99, 1), np.nan), RATE, bits=32, floats=True), "samples that are no numbers"),
    "too long": (wav(np.zeros((21 * RATE, 1)), RATE, bits=8), "it has 336000 samples at 16000 Hz"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sound_names_its_row(name: str, tmp_path: Path) -> None:
    """A hostile sound is refused in words that name its row."""
    file, fragment = HOSTILE[name]

    answer = ask_part(waves(), tmp_path, GOOD, file)

    assert isinstance(answer, Refusal)
    assert answer.message.startswith("audio: the sound in row 1 is refused: ")
    assert fragment in answer.message


@pytest.mark.slow
def test_resampling_precedes_features(tmp_path: Path) -> None:
    """What follows the samples that count does not change them, however long the file is."""
    samples = drawn_sound(30 * 48_000, 48_000, 6)
    short = ask_part(ast(max_length=64, num_mel_bins=16), tmp_path, wav(samples[: 3 * 48_000], 48_000))
    long = ask_part(ast(max_length=64, num_mel_bins=16), tmp_path, wav(samples, 48_000))
    heard = resampled(read_wav(wav(samples, 48_000))[0], 48_000, RATE)
    own = ast(max_length=64, num_mel_bins=16)(heard, sampling_rate=RATE, return_tensors="np")["input_values"]

    assert np.array_equal(short, long)
    require_near(long, own, atol=1e-4)


def test_different_lengths_need_mask(tmp_path: Path) -> None:
    """Sounds of different lengths need a mask."""
    answer = ask_part(waves(), tmp_path, GOOD, wav(drawn_sound(4_001, RATE, 5), RATE))

    assert isinstance(answer, Refusal)
    assert "have 4000 to 4001 samples, and the model has no mask" in answer.message


def test_foreign_extractor_refused_by_name() -> None:
    """An extractor of another kind is refused by its name."""
    extractor: Any = transformers.SeamlessM4TFeatureExtractor
    with pytest.raises(SourceError, match="cannot do what SeamlessM4TFeatureExtractor does"):
        sound_recipe_of(extractor())
    with pytest.raises(SourceError, match="adds noise"):
        sound_recipe_of(whisper(dither=0.1))


LABELS = {0: "speech", 1: "music", 2: "bark", 3: "silence"}
MODELS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "wave": ("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", waves(), SPEECH),
    "masked wave": (
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        waves(return_attention_mask=True),
        SPEECH | {"feat_extract_norm": "layer"},
    ),
    "ast": (
        "ASTForAudioClassification",
        "ASTConfig",
        ast(max_length=64, num_mel_bins=16),
        SIZES | {"max_length": 64, "num_mel_bins": 16},
    ),
    "whisper": (
        "WhisperForAudioClassification",
        "WhisperConfig",
        whisper(feature_size=16, chunk_length=1),
        WHISPER | {"max_source_positions": 50},
    ),
}


def serve(name: str, tmp_path: Path, **options: Any) -> Served:
    """Plan and write the pipeline around a model."""
    model, config, extractor, fields = MODELS[name]
    folder = save(tmp_path / "model", model, config, extractor, **fields | {"id2label": LABELS})
    live = load(folder)
    onnx = graph(live).model_copy(update={"mask_input": live.inputs.mask_input})
    settings = PipelineOptions.model_validate({"input": "audio"} | options)
    draft = plan_sound(live, folder, settings, onnx, task="", trust_remote_code=False)
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, tmp_path / "out")
    return Served(live, draft, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_classifier_answers_like_transformers(name: str, tmp_path: Path) -> None:
    """A classifier answers as the Transformers pipeline does."""
    served = serve(name, tmp_path, top_k=3)

    assert served.draft.output == "labels"
    for request in served.draft.questions.values():
        answer, owed = dict(served.answer(request)), dict(served.draft.ask(request))
        assert answer["label"].tolist() == owed["label"].tolist()
        require_near(answer["score"], owed["score"], atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_own_outputs_given_on_request(name: str, tmp_path: Path) -> None:
    """The model's own outputs are given where that is asked for."""
    served = serve(name, tmp_path, output="tensors")

    for request in served.draft.questions.values():
        answer, owed = served.answer(request), served.draft.ask(request)
        assert answer.keys() == owed.keys() == {"logits"}
        require_near(answer["logits"], owed["logits"], atol=1e-4)


def test_masks_match_extractor(tmp_path: Path) -> None:
    """Sounds of different lengths are masked as the extractor masks them."""
    served = serve("masked wave", tmp_path, output="tensors")
    files = [wav(drawn_sound(count, RATE, count), RATE) for count in (9_000, 16_000, 5_001)]
    request = {AUDIO: bytes_array(files)}

    require_near(served.answer(request)["logits"], served.draft.ask(request)["logits"], atol=1e-4)


def test_impossible_pipeline_refused_from_files(tmp_path: Path) -> None:
    """An impossible pipeline is refused from its files alone."""
    usual = PipelineOptions(input="audio")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    images = save(tmp_path / "images", "ViTModel", "ViTConfig", processor, **IMAGE)
    sounds = save(tmp_path / "sounds", *MODELS["ast"][:3], **MODELS["ast"][3])

    assert SOUNDS.refuse("hf", sounds, usual, task="") == "labels"
    with pytest.raises(SourceError, match="has no feature extractor"):
        SOUNDS.refuse("hf", images, usual, task="")
    with pytest.raises(UsageError, match="timm has no feature extractor"):
        SOUNDS.refuse("timm", images, usual, task="")
    with pytest.raises(UsageError, match=r"pipeline.output is text, and the model's configuration makes it labels"):
        SOUNDS.refuse("hf", sounds, PipelineOptions(output="text"), task="")


def test_compressed_files_need_their_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The refusal says what to install."""
    monkeypatch.setattr("plansmith.system.libraries.find_spec", lambda _: None)
    with pytest.raises(EnvironmentFault, match="soundfile is not installed, and pipeline") as raised:
        serve("wave", tmp_path, compressed_audio=True)
    assert "plansmith[audio]" in raised.value.remedy
