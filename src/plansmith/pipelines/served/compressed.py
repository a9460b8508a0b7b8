"""FLAC and MP3 reader on libsndfile through soundfile: reads no more of a file than the model uses."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from .wav import Unheard, require_usual

FORMATS = ("FLAC", "MP3")
"""By libsndfile's names. What it reads besides is not asked for."""

_FRAMES_AT_ONCE = 1 << 16
_UNKNOWN_FRAMES = 1 << 62
"""libsndfile has more of a file that does not say how long it is."""


def read_compressed(file: bytes, most_seconds: float) -> tuple[np.ndarray[Any, Any], int]:
    """Read samples from -1 to 1 as 32-bit floats, the mean of all channels, and their rate in Hz.

    Args:
        file: its bytes.
        most_seconds: after which nothing is decoded any more, however long the file is, or says that it is.

    Raises:
        Unheard: the bytes are no whole FLAC or MP3 file, or hold no sound.
    """
    import soundfile

    try:
        with soundfile.SoundFile(BytesIO(file)) as opened:
            _require_readable(opened)
            return _decoded(opened, int(most_seconds * opened.samplerate)), opened.samplerate
    except Unheard:
        raise
    except MemoryError as error:
        raise Unheard("there is no memory for it") from error
    except Exception as error:  # libsndfile's own are RuntimeErrors; a damaged header makes soundfile raise others
        reason = getattr(error, "error_string", "") or str(error)
        raise Unheard(f"it is no WAV, FLAC or MP3 file, or is damaged: {reason}") from error


def _require_readable(opened: Any) -> None:
    if opened.format not in FORMATS:
        raise Unheard(f"it is a file of the format {opened.format}, and WAV, {' and '.join(FORMATS)} are read")
    if opened.frames >= _UNKNOWN_FRAMES:
        raise Unheard("it does not say how long it is, as files of streams do not: send whole ones")
    require_usual(opened.channels, opened.samplerate, opened.subtype)


def _decoded(opened: Any, most: int) -> np.ndarray[Any, Any]:
    """Decode at most a given number of samples of an open file."""
    blocks: list[np.ndarray[Any, Any]] = []
    count = 0
    while count < most:
        block = opened.read(min(_FRAMES_AT_ONCE, most - count), dtype="float32", always_2d=True)
        if not len(block):
            break
        blocks.append(block.mean(axis=1, dtype=np.float64).astype(np.float32))
        count += len(block)
    if not count:
        raise Unheard("it has no sound")
    if opened.format == "FLAC" and count < min(opened.frames, most):
        raise Unheard(f"it is cut off: {count} of {opened.frames} samples")
    samples = np.concatenate(blocks)
    if not np.isfinite(samples).all():
        raise Unheard("it has samples that are no numbers")
    return samples
