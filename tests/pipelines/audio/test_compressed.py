"""FLAC and MP3 files are read as the WAV files that they were made of, and no file is read without an end."""

from __future__ import annotations

import json
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.config.pipeline import PipelineOptions
from plansmith.pipelines.audio.pipeline import AUDIO, drawn_sound, plan_sound, wav
from plansmith.pipelines.draft import write_part
from plansmith.pipelines.image.reference import bytes_array
from plansmith.pipelines.served.compressed import read_compressed
from plansmith.pipelines.served.requests import Refusal
from plansmith.pipelines.served.sound import SoundStep
from plansmith.pipelines.served.wav import Unheard, read_wav

from ...support.models.architectures import load, save
from ..image.test_plan_images import graph, require_near
from .test_sound import MODELS

soundfile = pytest.importorskip("soundfile")

RATE = 16_000


def written(samples: Any, file_format: str, rate: int = RATE, **options: Any) -> bytes:
    """A file of samples [count, channels]."""
    out = BytesIO()
    soundfile.write(out, samples, rate, format=file_format, **options)
    return out.getvalue()


@pytest.mark.parametrize(("channels", "bits"), [(1, 16), (2, 16), (5, 24)])
def test_flac_equals_its_wav(channels: int, bits: int) -> None:
    """To the bit."""
    samples = drawn_sound(50_000, 44_100, 3, channels=channels)
    plain, rate = read_wav(wav(samples, 44_100, bits=bits))
    whole = np.clip(np.round(samples * (1 << (bits - 1))), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    shifted = (whole.astype(np.int64) << (32 - bits)).astype(np.int32)

    heard, own = read_compressed(written(shifted, "FLAC", 44_100, subtype=f"PCM_{bits}"), 60)

    assert own == rate == 44_100
    assert heard.dtype == np.float32
    np.testing.assert_allclose(heard, plain, atol=1e-7)


def test_mp3_sounds_like_its_origin() -> None:
    """But for what its encoder leaves out, which is noise here."""
    samples = drawn_sound(3 * RATE, RATE, 4)
    heard, rate = read_compressed(written(samples, "MP3"), 60)
    assert rate == RATE
    near = np.correlate(heard[: 2 * RATE], samples[RATE // 4 : 2 * RATE - RATE // 4, 0], "valid")
    assert near.max() > 0.9 * np.square(samples[RATE // 4 : 2 * RATE - RATE // 4]).sum()


def test_decoding_stops_at_heard_part() -> None:
    """However little an hour of silence takes."""
    silence = written(np.zeros((40 * 60 * RATE, 1)), "FLAC")
    assert len(silence) < 1_000_000
    assert len(read_compressed(silence, 3)[0]) == 3 * RATE


FLAC = written(drawn_sound(RATE, RATE, 6), "FLAC")
UNKNOWN = FLAC[:21] + bytes([FLAC[21] & 0xF0, 0, 0, 0, 0]) + FLAC[26:]
"""How many samples there are stands in 36 bits of STREAMINFO (RFC 9639, section 8.2)."""

HOSTILE = {
    "a stream": (UNKNOWN, "it does not say how long it is"),
    "a month of sound, it says": (FLAC[:21] + bytes([FLAC[21] | 0x0F]) + b"\xff" * 4 + FLAC[26:], "it is "),
    "no bytes": (b"", "it is no WAV, FLAC or MP3 file"),
    "a text": (b"hello, world" * 99, "it is no WAV, FLAC or MP3 file"),
    "an Ogg file": (written(drawn_sound(RATE, RATE, 7), "OGG"), "it is a file of the format OGG"),
    "an AIFF file": (written(drawn_sound(RATE, RATE, 7), "AIFF"), "it is a file of the format AIFF"),
    "a million channels": (
        b".snd" + struct.pack(">5I", 24, 64, 3, RATE, 1_000_000) + bytes(64),
        "it is ",
    ),
    "half a FLAC file": (FLAC[: len(FLAC) // 2], "it is "),
    "a FLAC header": (FLAC[:60], "it "),
    "an MP3 header": (b"ID3\x04" + bytes(99), "it "),
    "zeros in a FLAC file": (FLAC[:2_000] + bytes(len(FLAC) - 2_000), "it is "),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_no_sound(name: str) -> None:
    """In words of its own, and no other exception."""
    file, message = HOSTILE[name]
    with pytest.raises(Unheard, match=message):
        read_compressed(file, 60)


@pytest.mark.slow
def test_pipeline_reads_compressed_on_request(tmp_path: Path) -> None:
    """Its part then names the library, its questions hold such files, and one that is too long is refused."""
    model, config, extractor, fields = MODELS["wave"]
    folder = save(tmp_path / "model", model, config, extractor, **fields)
    live = load(folder)
    options = PipelineOptions(compressed_audio=True)
    draft = plan_sound(live, folder, options, graph(live), task="", trust_remote_code=False)
    (part,) = draft.before
    write_part(part, np.__version__, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "sound" / "settings.json").read_text())
    step = SoundStep(settings, tmp_path / "out" / "sound")

    assert {"flac", "mp3"} <= draft.questions.keys()
    assert f"soundfile=={soundfile.__version__}" in (tmp_path / "out" / "sound" / "requirements.txt").read_text()
    sound = drawn_sound(RATE, RATE, 8)
    flac, plain, long = step.answer(
        [
            {AUDIO: bytes_array([file])}
            for file in (
                written(sound, "FLAC", subtype="PCM_16"),
                wav(sound, RATE),
                written(np.zeros((settings["most"] + 1, 1)), "FLAC"),
            )
        ]
    )
    assert isinstance(flac, dict)
    assert isinstance(plain, dict)
    require_near(flac["input_values"], plain["input_values"], atol=1e-3)
    assert isinstance(long, Refusal)
    assert f"to {settings['most']} are taken" in long.message
