"""Requests of sounds to ask a pipeline with: drawn here, as WAV files of the kinds that clients send."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING

from plansmith.pipelines.image.samples import bytes_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PCM, _FLOAT = 1, 3


def sound_questions(
    raw: str, *, rate: int, fewest: int, most: int, max_batch: int, mixed: bool
) -> dict[str, dict[str, NDArray[np.generic]]]:
    """Requests by name; the same ones every time.

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
    """Requests of FLAC and MP3 files; arguments as for `sound_questions`."""
    import numpy as np
    import soundfile

    count = min(most, max(fewest, rate))
    found = {}
    for seed, name in ((10, "flac"), (11, "mp3")):
        out = BytesIO()
        soundfile.write(out, drawn_sound(count, rate, seed, channels=2).astype(np.float32), rate, format=name.upper())
        found[name] = {raw: bytes_array([out.getvalue()])}
    return found


def drawn_sound(count: int, rate: int, seed: int, *, channels: int = 1) -> NDArray[np.float64]:
    """Samples [count, channels] of -1 to 1: tones that rise and fade, and some noise."""
    import numpy as np

    chance = np.random.default_rng(seed)
    times = np.arange(count)[:, None] / rate
    start, rise, fade = (chance.uniform(low, high, channels) for low, high in ((100, 900), (0, 400), (0.2, 2)))
    tones = np.sin(2 * np.pi * (start + rise * times) * times) * np.exp(-fade * times)
    return 0.7 * tones + 0.05 * np.clip(chance.standard_normal((count, channels)), -3, 3)


def wav(samples: NDArray[np.float64], rate: int, *, bits: int = 16, floats: bool = False) -> bytes:
    """A WAV file of samples [count, channels]: PCM, or floats."""
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
