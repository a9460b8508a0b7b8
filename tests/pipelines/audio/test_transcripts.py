"""Sounds become the text that transformers' speech recognition writes down, by greedy CTC."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import UsageError
from plansmith.pipelines.audio.kinds import sound_output
from plansmith.pipelines.audio.pipeline import AUDIO, drawn_sound, plan_sound, wav
from plansmith.pipelines.detect import raw_input
from plansmith.pipelines.draft import write_part
from plansmith.pipelines.image.reference import bytes_array
from plansmith.pipelines.served.postprocessing.transcript import TranscriptStep

from ...support.models.architectures import SPEECH, load, save
from ...support.pipelines.texts import Served
from ..image.test_plan_images import graph

RATE = 16_000
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAOIN'.,", "'S", "Ä", "東"]


def tokenizer(folder: Path, **changed: Any) -> Any:
    """A tokenizer of letters, and of pieces of several letters."""
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(TOKENS)}))
    kind: Any = transformers.Wav2Vec2CTCTokenizer
    return kind(str(folder / "vocab.json"), **changed)


def recogniser(folder: Path, *, masked: bool = False, words: Any = None, **changed: Any) -> Path:
    """A recogniser with random weights that says something."""

    def lively(model: Any) -> None:
        model.lm_head.weight.mul_(8)

    kind: Any = transformers.Wav2Vec2FeatureExtractor
    extractor = kind(return_attention_mask=masked)
    fields = SPEECH | {"vocab_size": len(TOKENS), "feat_extract_norm": "layer" if masked else "group"} | changed
    processor = words or tokenizer(folder / "letters")
    return save(folder / "model", "Wav2Vec2ForCTC", "Wav2Vec2Config", extractor, processor, change=lively, **fields)


def serve(folder: Path, out: Path, **options: Any) -> Served:
    """Plan and write the pipeline around a model."""
    live = load(folder)
    onnx = graph(live).model_copy(update={"mask_input": live.inputs.mask_input})
    draft = plan_sound(live, folder, PipelineOptions(**options), onnx, task="", trust_remote_code=False)
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, out)
    return Served(live, draft, out)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [True, False])
def test_transcripts_match_transformers(masked: bool, tmp_path: Path) -> None:
    """Whatever the file, and sounds of different lengths in one request where the model has a mask for them."""
    folder = recogniser(tmp_path, masked=masked)
    served = serve(folder, tmp_path / "out")
    library: Any = transformers.pipeline("automatic-speech-recognition", model=str(folder), device="cpu")

    assert served.draft.output == "transcript"
    assert [(t.name, t.dtype, t.dims) for t in served.draft.outputs] == [("text", "string", ("batch", 1))]
    assert ("mixed" in served.draft.questions) is masked
    for request in served.draft.questions.values():
        transcripts = served.answer(request)["text"]
        assert transcripts.tolist() == dict(served.draft.ask(request))["text"].tolist()
    sounds = [drawn_sound(count, RATE, count) for count in ((16_000, 9_000, 30_001) if masked else (16_000,) * 3)]
    answer = served.answer({AUDIO: bytes_array([wav(sound, RATE, bits=32, floats=True) for sound in sounds])})
    texts = [text.decode() for (text,) in answer["text"]]
    assert texts == [library(sound[:, 0].astype(np.float32))["text"] for sound in sounds]
    assert all(len({*text}) > 3 for text in texts)


@pytest.mark.parametrize(
    "changed",
    [{}, {"do_lower_case": True}, {"clean_up_tokenization_spaces": True}, {"replace_word_delimiter_char": "_"}],
)
def test_frames_joined_like_tokenizer(changed: dict[str, Any], tmp_path: Path) -> None:
    """Repeats, blanks between them, words, pieces of several letters, and the tokenizer's own options."""
    word_tokenizer = tokenizer(tmp_path / "letters", **changed)
    settings: dict[str, Any] = {
        "logits": "logits",
        "mask": "",
        "convolutions": [],
        "tokens": word_tokenizer.convert_ids_to_tokens(list(range(len(TOKENS)))),
        "blank": word_tokenizer.pad_token,
        "delimiter": word_tokenizer.word_delimiter_token,
        "space": word_tokenizer.replace_word_delimiter_char,
        "lower": word_tokenizer.do_lower_case,
        "cleaned": word_tokenizer.clean_up_tokenization_spaces,
    }
    ids = np.random.default_rng(0).integers(0, len(TOKENS), (40, 60))
    ids[:, ::3] = ids[:, 1::3]
    ids[0] = 0
    step = TranscriptStep(settings, tmp_path)

    (answer,) = step.answer([{"logits": np.eye(len(TOKENS), dtype=np.float32)[ids]}])

    assert isinstance(answer, dict)
    assert [text.decode() for (text,) in answer["text"]] == word_tokenizer.batch_decode(ids)


def test_recogniser_takes_sounds(tmp_path: Path) -> None:
    """Its directory alone says so; asked for other tensors, it gives its logits."""
    folder = recogniser(tmp_path)
    assert raw_input("hf", folder, PipelineOptions()) == "audio"
    assert sound_output(folder, "automatic-speech-recognition") == "transcript"
    assert sound_output(folder, "audio-classification") == "labels"
    assert [tensor.name for tensor in serve(folder, tmp_path / "out", output="tensors").draft.outputs] == ["logits"]


def test_other_joining_tokenizer_refused(tmp_path: Path) -> None:
    """Of phonemes, for example, which have spaces between them."""
    folder = recogniser(tmp_path)
    live = load(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": "BertTokenizer"}))
    (folder / "vocab.txt").write_text("\n".join(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a"]))
    with pytest.raises(UsageError, match=r"needs logits \[batch, frames, tokens\] and a Wav2Vec2CTCTokenizer"):
        plan_sound(live, folder, PipelineOptions(), graph(live), task="", trust_remote_code=False)
