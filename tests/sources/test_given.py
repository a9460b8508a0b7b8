"""What the spec may say about a model of transformers: its task, its inputs and its outputs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import make_spec
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import OnnxModel
from plansmith.sources import timm

from ..support.worker_tasks import export_model

# Their fixture is costly.
pytestmark = pytest.mark.xdist_group("given")

SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SERIES = {"past_values": {"dtype": "float32", "dims": ["batch", 16, 3]}}


def exported(folder: Path, out: Path, *, task: str = "", **options: Any) -> OnnxModel:
    out.mkdir()
    return export_model(folder, out, task=task, **options)


def save(model: Any, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A forecaster."""
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=3,
        context_length=16,
        prediction_length=4,
        patch_length=4,
        patch_stride=4,
        d_model=16,
        ffn_dim=16,
        num_attention_heads=2,
        num_hidden_layers=1,
    )
    return save(PatchTSTForPrediction(config), tmp_path_factory.mktemp("series") / "model")


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose configuration does not say that it is one."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**SMALL, vocab_size=50, max_position_embeddings=32)
    config.num_labels = 3
    folder = save(BertForSequenceClassification(config), tmp_path_factory.mktemp("headless") / "model")
    fields = json.loads((folder / "config.json").read_text())
    del fields["architectures"]
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.slow
def test_spec_inputs_and_outputs_suffice(series: Path, tmp_path: Path) -> None:
    """Inputs and outputs of the spec are enough for it."""
    onnx = exported(series, tmp_path / "out", inputs=SERIES, outputs=("loc", "prediction_outputs"))
    component = onnx.components["model"]
    assert [(t.name, t.dims) for t in component.inputs] == [("past_values", ("batch", 16, 3))]
    assert [(t.name, t.dims) for t in component.outputs] == [
        ("loc", ("batch", 1, 3)),
        ("prediction_outputs", ("batch", 4, 3)),
    ]
    assert (onnx.reference.data, onnx.reference.guessed) == ("random values", True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"inputs": SERIES, "outputs": ("forecast",)}, "the model has no output forecast"),
        ({"inputs": {"values": SERIES["past_values"]}}, "PatchTSTForPrediction has no input values"),
        ({"inputs": {"past_values": {"dims": ["batch", 16, 3]}}}, "past_values needs both a dtype and dims"),
        (
            {"inputs": {"past_values": {"dtype": "float32", "dims": ["batch", 9, 3]}}},
            r"does not take the given inputs \(past_values \[2, 9, 3\]\)",
        ),
    ],
    ids=["an unknown output", "an unknown input", "half a description", "a wrong size"],
)
def test_unfitting_spec_refused(options: dict[str, Any], says: str, series: Path, tmp_path: Path) -> None:
    """A spec that does not fit the model is refused."""
    with pytest.raises(UsageError, match=says) as caught:
        exported(series, tmp_path / "out", **options)
    assert caught.value.remedy


@pytest.mark.slow
def test_encoder_decoder_goes_by_inputs(tmp_path: Path) -> None:
    """An encoder-decoder goes by its inputs, and padding is told from the other text."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    folder = save(T5ForConditionalGeneration(config), tmp_path / "model")
    text = {"dtype": "int64", "dims": ["batch", "sequence"], "low": 0, "high": 49}
    input_specs = {
        "input_ids": text,
        "attention_mask": {"dtype": "int64", "dims": ["batch", "sequence"], "mask": True},
        "decoder_input_ids": {**text, "dims": ["batch", "target"]},
    }
    names = ("logits", "encoder_last_hidden_state")
    onnx = exported(folder, tmp_path / "out", inputs=input_specs, outputs=names)
    assert [t.dims for t in onnx.components["model"].outputs] == [("batch", "target", 50), ("batch", "sequence", 16)]
    assert onnx.mask_input == "attention_mask"


def test_spec_axes_stay_within_positions(tmp_path: Path) -> None:
    """Axes of the spec go no further than the model has positions."""
    from transformers import RobertaConfig, RobertaModel

    from plansmith.config.spec import InputSpec
    from plansmith.sources.huggingface import models

    folder = save(RobertaModel(RobertaConfig(**SMALL, vocab_size=50, max_position_embeddings=34)), tmp_path / "model")
    input_specs = {"input_ids": InputSpec(dtype="int64", dims=("batch", "tokens"), low=2, high=49)}
    live = models.load(
        folder, trust_remote_code=False, allow_pickle=False, task="", inputs=input_specs, outputs=("last_hidden_state",)
    )
    assert live.inputs.limits == {"tokens": 32}
    assert live.inputs.axes["tokens"].max == 32


def test_task_chooses_head(headless: Path, tmp_path: Path) -> None:
    """A task chooses the head where the configuration names none."""
    shapes = {"input_ids": {"min": (1, 4), "opt": (2, 8), "max": (2, 8)}}
    onnx = exported(headless, tmp_path / "out", task="text-classification", shapes=shapes)
    assert [(t.name, t.dims) for t in onnx.components["model"].outputs] == [("logits", ("batch", 3))]


@pytest.mark.parametrize(
    ("task", "kind", "says", "remedy"),
    [
        ("text-clasification", UsageError, "has no task 'text-clasification'", "text-classification"),
        ("xyz", UsageError, "has no task 'xyz'", "choose one of: any-to-any"),
        ("object-detection", SourceError, "no bert model for the task 'object-detection'", "fill-mask"),
        ("fill-mask", SourceError, "lacks .* of BertForMaskedLM", "leave the task out"),
    ],
)
def test_impossible_task_refused(
    task: str, kind: type[Exception], says: str, remedy: str, headless: Path, tmp_path: Path
) -> None:
    """A task that the model cannot do is refused."""
    with pytest.raises(kind, match=says) as caught:
        exported(headless, tmp_path / "out", task=task)
    assert remedy in str(caught.value)


def test_timm_model_gives_pooled_features(tmp_path: Path) -> None:
    """A timm model gives pooled features when asked."""
    out = tmp_path / "out"
    out.mkdir()
    model = tmp_path / "model"
    timm.make_random("test_resnet", model, seed=0)
    shapes = {"pixel_values": dict.fromkeys(("min", "opt", "max"), (1, 3, 160, 160))}
    onnx = export_model(model, out, scheme="timm", task="image-feature-extraction", shapes=shapes)
    (output,) = onnx.components["model"].outputs
    assert (output.name, output.dims[0], len(output.dims)) == ("features", "batch", 2)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"dtype": "string"}, "dtype 'string' is none of bool, float16"),
        ({"dims": ["batch", 0]}, "dims are sizes of 1 or more"),
        ({"dims": ["batch", "a b"]}, "dims are sizes of 1 or more"),
        ({"low": 3}, "low and high go together"),
        ({"low": 3, "high": 2}, "low 3 is above high 2"),
        ({"mask": True, "low": 0, "high": 1}, "a mask holds zeros and ones"),
        ({"shape": [1]}, "unknown key"),
    ],
)
def test_wrong_input_description_refused(said: dict[str, Any], problem: str) -> None:
    """An input that is described wrongly is refused by its name."""
    with pytest.raises(UsageError, match=problem) as caught:
        make_spec({"source": "hf:model", "inputs": {"x": said}})
    assert "inputs.x" in caught.value.message
