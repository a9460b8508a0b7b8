"""From a directory to a graph: what moves is found, what does not is told, on the CPU or on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from plansmith.compilers.onnxrt import open_session
from plansmith.data.reference import read_case
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.records.model import OnnxModel
from plansmith.sources import timm as timm_models

from ...support.models.encoders import save_vit
from ...support.worker_tasks import export_model

if TYPE_CHECKING:
    from pathlib import Path

MAMBA: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}


def exported(folder: Path, out: Path, scheme: str, **options: Any) -> OnnxModel:
    out.mkdir()
    return export_model(folder, out, scheme=scheme, **({"max_opset": 20} | options))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resnet")
    timm_models.make_random("test_resnet", folder, seed=0)
    return folder


def shapes_of(name: str, low: tuple[int, ...], usual: tuple[int, ...], high: tuple[int, ...]) -> dict[str, Any]:
    return {name: {"min": low, "opt": usual, "max": high}}


def small(batch: int = 3) -> dict[str, Any]:
    return shapes_of("pixel_values", (1, 3, 160, 160), (2, 3, 160, 160), (batch, 3, 160, 160))


@pytest.mark.parametrize(("task", "output"), [("", "logits"), ("image-feature-extraction", "features")])
def test_timm_batch_axis_moves(resnet: Path, tmp_path: Path, task: str, output: str) -> None:
    """A timm model moves in its batch, with its head and without."""
    onnx = exported(resnet, tmp_path / "out", "timm", task=task, shapes=small())
    assert [t.name for t in onnx.components["model"].outputs] == [output]
    assert onnx.components["model"].inputs[0].dims == ("batch", 3, 160, 160)
    assert (onnx.exporter, onnx.fixed) == ("torchscript", ())
    assert set(onnx.reference.rounding) == {output}
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"model.onnx", "reference"}


def test_shared_weights_are_saved(tmp_path: Path) -> None:
    """Layers that share weights are saved and answer alike."""
    import timm

    timm_models.make_random("coat_lite_tiny", tmp_path, seed=0)
    torch.manual_seed(0)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    names = [name for name, _ in loaded.named_parameters(remove_duplicate=False)]
    assert len(names) > len(list(loaded.parameters()))


@pytest.mark.slow
def test_mamba_sequence_axis_moves(tmp_path: Path) -> None:
    """A Mamba moves in its sequence."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    MambaForCausalLM(MambaConfig(**MAMBA)).save_pretrained(tmp_path / "mamba")
    shapes = shapes_of("input_ids", (1, 1), (2, 20), (3, 70))
    onnx = exported(tmp_path / "mamba", tmp_path / "out", "hf", shapes=shapes)
    assert (onnx.exporter, onnx.fixed) == ("torchscript", ())
    assert "selective scan by doubling" in onnx.attempts[0].rewrites
    session = open_session(tmp_path / "out" / "model.onnx")
    for case in onnx.reference.cases:
        stored = read_case(case, tmp_path / "out")
        answer = session.run(["logits"], dict(stored.feed))[0]
        valid = stored.feed["attention_mask"].astype(bool)
        np.testing.assert_allclose(answer[valid], stored.answer["logits"][valid], atol=1e-4)


@pytest.mark.slow
def test_tied_sides_are_one_axis(tmp_path: Path) -> None:
    """Sides that move only together are one axis of the graph."""
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    text = small | {"vocab_size": 40, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1}
    decoder: dict[str, Any] = {
        "reduce_dim": 8,
        "extract_layers": [0, 1],
        "decoder_num_attention_heads": 2,
        "conditional_layer": 0,
    }
    config = CLIPSegConfig(
        text_config=text | {"pad_token_id": 0},
        vision_config=small | {"image_size": 64, "patch_size": 16},
        projection_dim=16,
        decoder_intermediate_size=16,
        **decoder,
    )
    CLIPSegForImageSegmentation(config).save_pretrained(tmp_path / "clipseg")
    onnx = exported(tmp_path / "clipseg", tmp_path / "out", "hf")
    assert onnx.exporter == "torchscript"
    assert [(t.axis, t.to) for t in onnx.tied] == [("width", "height")]
    pixels = next(t for t in onnx.components["model"].inputs if t.name == "pixel_values")
    assert pixels.dims == ("batch", 3, "height", "height")
    assert set(onnx.every_axis()) == {"batch", "height", "sequence"}
    assert {case.axes["height"] for case in onnx.reference.cases} == {64, 95, 96}
    apart = shapes_of("pixel_values", (1, 3, 64, 64), (1, 3, 64, 64), (1, 3, 64, 96))
    with pytest.raises(UsageError, match="'width' and 'height' are one for this model"):
        exported(tmp_path / "clipseg", tmp_path / "other", "hf", shapes=apart)


def test_refused_requested_size_is_error(resnet: Path, tmp_path: Path) -> None:
    """A size that the model refuses is an error where a person asked for it."""
    wide = shapes_of("pixel_values", (1, 3, 160, 160), (2, 3, 160, 160), (2, 3, 160, 320))
    with pytest.raises(UsageError) as caught:
        exported(resnet, tmp_path / "out", "timm", shapes=wide)
    assert "fixed at 160" in caught.value.message


def test_refused_fixed_size_is_error(tmp_path: Path) -> None:
    """A fixed size that the model refuses is an error too."""
    sides = shapes_of("pixel_values", (1, 3, 32, 16), (1, 3, 32, 16), (2, 3, 32, 16))
    with pytest.raises(
        UsageError, match="'height' is to be 32, and the model takes 16 only: Input image size"
    ) as caught:
        exported(save_vit(tmp_path / "vit"), tmp_path / "out", "hf", shapes=sides)
    assert "write 16 for it" in caught.value.remedy


def test_model_without_room_refused(resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without room is refused before it is loaded."""
    monkeypatch.setattr("plansmith.sources.loaded_model.usable_memory", lambda: 100 << 20)
    monkeypatch.setattr("plansmith.compilers.export.export.load", None)
    with pytest.raises(EnvironmentFault) as caught:
        exported(resnet, tmp_path / "out", "timm")
    assert "100.0 MiB are left" in caught.value.message


def test_missing_gpu_is_said(resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not there is told."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentFault) as caught:
        exported(resnet, tmp_path / "out", "timm", device="cuda")
    assert "sees no GPU here" in caught.value.message
    assert "--device cpu" in caught.value.remedy


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_model_exported_on_gpu(resnet: Path, tmp_path: Path) -> None:
    """A model is exported on a GPU."""
    onnx = exported(resnet, tmp_path / "out", "timm", device="cuda", shapes=small())
    assert onnx.reference.runtime.endswith("FP32 on cuda")
    assert onnx.components["model"].inputs[0].dims[0] == "batch"
