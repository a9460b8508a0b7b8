"""Padding follows sizes that move, and a second trace follows branches that whole sizes do not enter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites.layers import padded_to_same
from plansmith.compilers.export.rewrites.registry import in_force, module_rewrites
from plansmith.compilers.export.torch_export import OutOfTime, cpu_seconds
from plansmith.data.reference import odd_sizes
from plansmith.records.model import AxisRange, Tensor
from plansmith.sources.loaded_model import enliven

from ...support.validation.graphs import silent
from .jobs import job_at

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = (Tensor(name="x", dtype="float32", dims=("batch", 3, "height", "width")),)
SHAPES = {
    "traced": {"batch": 2, "height": 64, "width": 64},
    "single": {"batch": 1, "height": 64, "width": 64},
    "untraced": {"batch": 3, "height": 87, "width": 93},
    "odd": {"batch": 3, "height": 68, "width": 68},
}


class Classifier(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        enliven(model, 0)
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.model(pixel_values=x).logits,)


def swin() -> Classifier:
    from transformers import Swinv2Config, Swinv2ForImageClassification

    torch.manual_seed(0)
    config = Swinv2Config(image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4)
    return Classifier(Swinv2ForImageClassification(config))


def mobilenet() -> Classifier:
    from transformers import MobileNetV1Config, MobileNetV1ForImageClassification

    torch.manual_seed(0)
    return Classifier(MobileNetV1ForImageClassification(MobileNetV1Config(depth_multiplier=0.25, min_depth=4)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "rewrite"), [(swin, "padding without branches"), (mobilenet, "padding to the same size")]
)
def test_sides_that_are_padded_move(made: Any, rewrite: str, tmp_path: Path) -> None:
    exported = torch_export.export(job_at(made(), IMAGES, SHAPES, tmp_path), silent)
    assert {a.exporter for a in exported.attempts} == {"torchscript"}
    assert rewrite in exported.attempts[-1].rewrites
    assert exported.component.inputs[0].dims == ("batch", 3, "height", "width")


@pytest.mark.parametrize("made", [swin, mobilenet])
@pytest.mark.parametrize("side", [64, 67, 68, 93])
def test_rewritten_form_keeps_answers(made: Any, side: int) -> None:
    """The other form gives the same answers."""
    module = made().eval()
    images = torch.randn(2, 3, side, side + 2, generator=torch.Generator().manual_seed(side))
    with torch.inference_mode():
        own = module(images)[0]
        with in_force(module, "dynamo", []):
            torch.testing.assert_close(module(images)[0], own)
        torch.testing.assert_close(module(images)[0], own, rtol=0, atol=0)


@pytest.mark.parametrize("size", [7, 8, 9, 10])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 2, 1), (3, 1, 1), (1, 2, 1), (5, 2, 1), (3, 1, 2)])
def test_same_padding_matches_tensorflow(size: int, kernel: int, stride: int, dilation: int) -> None:
    """Padding to the same size is that of TensorFlow."""
    from transformers.models.mobilenet_v2.modeling_mobilenet_v2 import apply_tf_padding

    layer = torch.nn.Conv2d(2, 2, kernel, stride, dilation=dilation)
    images = torch.randn(1, 2, size, size + 3)
    torch.testing.assert_close(padded_to_same(images, layer), apply_tf_padding(images, layer), rtol=0, atol=0)


def test_odd_sizes_make_whole_patches() -> None:
    """Odd sizes are whole patches of an odd number."""
    side, tokens = AxisRange(min=112, opt=224, max=224), AxisRange(min=1, opt=128, max=512)
    sizes = odd_sizes({"height": side, "sequence": tokens}, {"height": 201, "sequence": 23})
    assert sizes == {"height": 164, "sequence": 23}
    assert sizes["height"] // 4 % 8 == 1


def test_module_rewrites_named_once() -> None:
    """Every rewrite of modules is named once with reason and link."""
    rewrites = module_rewrites()
    assert len({rewrite.name for rewrite in rewrites}) == len(rewrites)
    for rewrite in rewrites:
        assert rewrite.reason
        assert rewrite.link.startswith("https://github.com/")
        assert rewrite.exporters
        assert not rewrite.applies(torch.nn.Linear(2, 2))


def test_slow_work_is_ended() -> None:
    """What takes too long is ended."""

    def spin(seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    with cpu_seconds(5):
        spin(0.05)
    with pytest.raises(OutOfTime, match="gave up after 0 s"), cpu_seconds(0.1):
        spin(10)
    spin(0.2)
