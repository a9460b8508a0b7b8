"""WAV reader, with downmixing to one channel and resampling."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_SLOWEST, _FASTEST = 1_000, 768_000
_MOST_CHANNELS = 32
_LOUDEST = 2.0**31
"""Sound is from -1 to 1; floats that were never scaled are integers of 32 bits at most."""

_ZEROS, _ROLLOFF = 6, 0.99
"""Of the sinc that resamples, as torchaudio's: zero crossings on each side, and the share of the band that is kept."""

_AT_ONCE = 1 << 20
"""Products that are in memory at once."""


class Unheard(Exception):
    """Invalid audio data; the message says why."""


def read_wav(file: bytes) -> tuple[np.ndarray[Any, Any], int]:
    """Read samples from -1 to 1 as 32-bit floats, the mean of all channels, and their rate in Hz.

    Raises:
        Unheard: the bytes are no WAV file of PCM or floats, or hold no sound.
    """
    form: bytes | None = None
    data: bytes | None = None
    if file[:4] != b"RIFF" or file[8:12] != b"WAVE":
        raise Unheard("it is no WAV file")
    place = 12
    while place + 8 <= len(file) and data is None:
        name, size = struct.unpack_from("<4sI", file, place)
        content = file[place + 8 : place + 8 + size]
        if name == b"fmt ":
            form = content
        if name == b"data":
            if len(content) < size and size != 0xFFFFFFFF:  # what streams write, who do not know
                raise Unheard(f"it is cut off: {len(content)} of {size} bytes of sound")
            data = content
        place += 8 + size + size % 2
    if form is None or len(form) < 16 or data is None:
        raise Unheard("it is damaged or cut off")
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", form)
    if kind == _EXTENSIBLE and len(form) >= 26:
        kind = struct.unpack_from("<H", form, 24)[0]
    require_usual(channels, rate, f"{bits} bits")
    if block != channels * bits // 8:
        raise Unheard(f"it has {channels} channels of {bits} bits in {block} bytes")
    whole = len(data) - len(data) % block if block else 0
    samples = _numbers(data[:whole], kind, bits).reshape(-1, channels)
    if not len(samples):
        raise Unheard("it has no sound")
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number, and 64-bit floats that are no 32-bit ones
        mixed = samples.mean(axis=1, dtype=np.float64).astype(np.float32)
    if not (np.abs(mixed) <= _LOUDEST).all():
        raise Unheard("it has samples that are no numbers, or no sound")
    return mixed, rate


def require_usual(channels: int, rate: int, samples: str) -> None:
    """Require that a header describes a plausible recording.

    Args:
        channels: of the file.
        rate: in Hz.
        samples: what they are, in words.

    Raises:
        Unheard: it does not.
    """
    if not 1 <= channels <= _MOST_CHANNELS or not _SLOWEST <= rate <= _FASTEST:
        raise Unheard(f"it has {channels} channels of {samples} at {rate} Hz")


def _numbers(data: bytes, kind: int, bits: int) -> np.ndarray[Any, Any]:
    if kind == _FLOAT and bits in {32, 64}:
        return np.frombuffer(data, f"<f{bits // 8}")
    if kind == _PCM and bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if kind == _PCM and bits in {16, 32}:
        return np.frombuffer(data, f"<i{bits // 8}") / np.float64(1 << (bits - 1))
    if kind == _PCM and bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0] / np.float64(1 << 31)
    raise Unheard(f"it has samples of kind {kind} with {bits} bits, and PCM of 8 to 32 bits or floats are read")


def length_at(count: int, rate: int, target_rate: int) -> int:
    """Return the number of samples that `resampled` makes of a number of samples."""
    return -(-count * target_rate // rate)


def resampled(samples: np.ndarray[Any, Any], rate: int, target_rate: int) -> np.ndarray[Any, Any]:
    """Resample audio with a Hann-windowed sinc filter."""
    if rate == target_rate:
        return samples
    divisor = math.gcd(rate, target_rate)
    old, new = rate // divisor, target_rate // divisor
    # Times are in samples of the old rate; the band ends below the half of the lower rate.
    band = _ROLLOFF * min(1.0, new / old)
    reach = math.ceil(_ZEROS / band)
    count = length_at(len(samples), rate, target_rate)
    padded = np.concatenate([np.zeros(reach), samples.astype(np.float64), np.zeros(reach + 1)])
    offsets = np.arange(-reach, reach + 1)
    output = np.empty(count, np.float32)
    step = max(1, _AT_ONCE // len(offsets))
    for first in range(0, count, step):
        places = np.arange(first, min(first + step, count), dtype=np.int64) * old
        before, fraction = places // new, (places % new) / new
        distance = (offsets[None] - fraction[:, None]) * band
        window = np.where(np.abs(distance) < _ZEROS, np.cos(distance * (np.pi / _ZEROS / 2)) ** 2, 0.0)
        weights = np.sinc(distance) * window * band
        output[first : first + len(places)] = (padded[before[:, None] + offsets + reach] * weights).sum(axis=1)
    return output
