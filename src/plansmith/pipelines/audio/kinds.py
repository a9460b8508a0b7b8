"""Audio model kinds, detected from the model directory's files alone: labels, a transcript, or other tensors."""

from __future__ import annotations

from pathlib import Path

from plansmith.pipelines.answer_kinds import TRANSFORMERS, RawKind
from plansmith.records.pipeline import RawOutput
from plansmith.sources.directory import read_config, read_json
from plansmith.sources.huggingface.processors import PROCESSOR_FILES

_TASK, _RECOGNITION = "audio-classification", "automatic-speech-recognition"
_CLASSIFIERS = ("ForSequenceClassification", "ForAudioClassification")
_RECOGNISER = "ForCTC"

SOUNDS = RawKind(
    name="audio",
    plural="sounds",
    lacking={"onnx": "an ONNX file has no feature extractor", "timm": "timm has no feature extractor"},
    fitting=TRANSFORMERS,
    processor="feature extractor",
    variable="feature_extractor",
    takes=lambda _, folder: takes_sounds(folder),
    output=lambda _, folder, task: sound_output(folder, task),
)


def takes_sounds(folder: Path) -> bool:
    """Whether a transformers directory defines how audio becomes the model's input.

    Raises:
        SourceError: a file is no JSON.
    """
    documents = (read_json(folder / name) for name in PROCESSOR_FILES if (folder / name).is_file())
    return any("sampling_rate" in str(document) for document in documents)


def sound_output(folder: Path, task: str) -> RawOutput:
    """Return the output kind of an audio model, by the requested task or its configuration.

    Raises:
        SourceError: the configuration is no JSON.
    """
    named = str((read_config(folder).get("architectures") or [""])[0])
    if named.endswith(_RECOGNISER) and task in {"", _RECOGNITION}:
        return "transcript"
    return "labels" if task == _TASK or (not task and named.endswith(_CLASSIFIERS)) else "tensors"
