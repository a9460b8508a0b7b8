"""Audio preprocessing: turns sound files into the model's input, the waveform or its log-mel spectrogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .requests import Arrays, Refusal
from .wav import Unheard, length_at, read_wav, resampled

_VARIANCE_FLOOR = 1e-7


class SoundStep:
    """Audio step: decodes, mixes down to one channel, resamples, and extracts features.

    Settings:
        input: name of the tensor of bytes, [batch, 1].
        output: name of the model's input.
        mask: name of the model's mask of samples; empty: it has none.
        dtype: of the model's input, by NumPy's name.
        mask_dtype: of the mask.
        rate: of the model, in Hz.
        fewest, most: samples of one sound at that rate; fewer, or more, are refused, unless `spectrum` cuts them off.
        compressed: whether FLAC and MP3 files are read as well as WAV, with the library soundfile.
        normalized: whether a wave gets the mean 0 and the variance 1.
        spectrum: how a spectrum is made (see `spectrum_of`); None: the wave is the input.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; the mel filters of a spectrogram are in the folder."""
        self._settings = settings
        if settings["compressed"]:  # a server that lacks the library is to say so when it loads the part
            import soundfile  # noqa: F401
        # A second more than is heard, for the filter that resamples, and to tell what is too long.
        self._most_seconds = settings["most"] / settings["rate"] + 1
        self._filters = np.load(folder / settings["spectrum"]["filters"]) if settings["spectrum"] else None

    def answer(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Refusal]:
        """Return the model's input for each request, or the reason for refusing it."""
        return [self._answered(feed[self._settings["input"]]) for feed in feeds]

    def _answered(self, files: np.ndarray[Any, Any]) -> Arrays | Refusal:
        settings, rows = self._settings, files.reshape(-1).tolist()
        waves = []
        for row, file in enumerate(rows):
            try:
                waves.append(self._wave(file))
            except Unheard as problem:
                return Refusal(f"{settings['input']}: the sound in row {row} is refused: {problem}")
        if self._filters is not None:
            batch = np.stack([spectrum_of(wave, settings["spectrum"], self._filters) for wave in waves])
            return {settings["output"]: batch.astype(settings["dtype"])}
        lengths = [len(wave) for wave in waves]
        if len(set(lengths)) > 1 and not settings["mask"]:
            return Refusal(
                f"{settings['input']}: the sounds of one request have {min(lengths)} to {max(lengths)} samples, and the"
                " model has no mask for what is padded: send them in requests of their own"
            )
        batch = np.zeros((len(waves), max(lengths)), settings["dtype"])
        for row, wave in enumerate(waves):
            batch[row, : len(wave)] = wave
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        return {settings["output"]: batch} | (
            {settings["mask"]: mask.astype(settings["mask_dtype"])} if settings["mask"] else {}
        )

    def _wave(self, file: bytes) -> np.ndarray[Any, Any]:
        """Return one audio clip at the model's sampling rate.

        Raises:
            Unheard: there is none in the bytes, or it is too short or too long.
        """
        settings = self._settings
        samples, rate = read_sound(file, self._most_seconds, compressed=settings["compressed"])
        count = length_at(len(samples), rate, settings["rate"])
        if settings["spectrum"]:  # what is cut off at last need not be resampled; a second more, for the filter
            samples, count = samples[: (settings["most"] // settings["rate"] + 2) * rate], min(count, settings["most"])
        if not settings["fewest"] <= count <= settings["most"]:
            raise Unheard(
                f"it has {count} samples at {settings['rate']} Hz; {settings['fewest']} to {settings['most']} are taken"
            )
        wave = resampled(samples, rate, settings["rate"])[:count]
        if settings["normalized"]:
            wave = (wave - wave.mean()) / np.sqrt(wave.var() + _VARIANCE_FLOOR)
        return wave


def read_sound(file: bytes, most_seconds: float, *, compressed: bool) -> tuple[np.ndarray[Any, Any], int]:
    """Read samples from -1 to 1 as 32-bit floats, the mean of all channels, and their rate in Hz.

    Args:
        file: its bytes.
        most_seconds: of a compressed file; what follows is not decoded.
        compressed: whether such files are read.

    Raises:
        Unheard: the bytes are no sound, or one of another format.
    """
    if not compressed or file[:4] == b"RIFF":
        return read_wav(file)
    from .compressed import read_compressed

    return read_compressed(file, most_seconds)


def spectrum_of(wave: np.ndarray[Any, Any], how: Mapping[str, Any], filters: np.ndarray[Any, Any]) -> Any:
    """Return the log-mel spectrogram.

    Args:
        wave: samples of one channel.
        how: `padded`: samples that a shorter wave is filled up to with zeros, 0: none. `centred`: whether frames are
            around their samples, the ends mirrored. `frame`, `hop`, `bins`: samples of a frame, from one to the next,
            and of its Fourier transform. `flat`: whether a frame's mean is taken off. `emphasis`: how much of the
            sample before is taken off each. `periodic`: whether the Hann window is. `floor`, `log`: the least energy,
            and "log10" or "log". `depth`: how far below the loudest is heard, None: all of it. `frames`: how many
            there are; more are cut off, and where fewer are, zeros follow. `mean`, `std`: of what comes then.
            `frames_first`: or the mels.
        filters: [bins / 2 + 1, mels].
    """
    if len(wave) < how["padded"]:
        wave = np.concatenate([wave, np.zeros(how["padded"] - len(wave), wave.dtype)])
    wave = wave.astype(np.float64)
    if how["centred"]:
        wave = np.pad(wave, how["frame"] // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(wave, how["frame"])[:: how["hop"]][: how["frames"]]
    if how["flat"]:
        frames = frames - frames.mean(axis=1, keepdims=True)
    if how["emphasis"]:
        before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        frames = frames - how["emphasis"] * before
    window = np.hanning(how["frame"] + 1)[:-1] if how["periodic"] else np.hanning(how["frame"])
    power = np.abs(np.fft.rfft(frames * window, how["bins"], axis=1)) ** 2
    heard = np.maximum(power @ filters, how["floor"])
    levels = np.log10(heard) if how["log"] == "log10" else np.log(heard)
    if how["depth"] is not None:
        levels = np.maximum(levels, levels.max() - how["depth"])
    if len(levels) < how["frames"]:
        levels = np.concatenate([levels, np.zeros((how["frames"] - len(levels), levels.shape[1]))])
    levels = (levels - how["mean"]) / how["std"]
    return levels if how["frames_first"] else levels.T
