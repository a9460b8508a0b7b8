"""What transformers' feature extractors do with sound, as settings of the part for sound. Runs in the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.errors import SourceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILTERS_FILE = "mel_filters.npy"

_KALDI_FRAME, _KALDI_HOP, _KALDI_BINS, _KALDI_LOWEST = 400, 160, 512, 20
_KALDI_FLOOR = 1.192092955078125e-07


@dataclass(frozen=True)
class SoundRecipe:
    """What a feature extractor does.

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
    """What a feature extractor does with one sound.

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
    """As it is without torchaudio, whose filter banks these are, too."""
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
