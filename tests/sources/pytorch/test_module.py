"""Modules as MLflow logs them are asked as they were logged: their inputs, which of their axes move, their answers."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plansmith.config.spec import InputSpec
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import AxisRange
from plansmith.sources import pytorch as torch_modules
from plansmith.sources.dynamic_axes import find_dynamic_axes
from plansmith.sources.loaded_model import LoadedModel
from plansmith.sources.pytorch import output_names

from .programs import AUTO, net, saved

SIGNED = """flavors: {pytorch: {model_data: data}}
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]'
"""


def folder_of(folder: Path, content: bytes, name: str = "model.pt2", described: str = SIGNED) -> Path:
    (folder / name).write_bytes(content)
    (folder / "MLmodel").write_text(described)
    return folder


def loaded(folder: Path, *, allow_pickle: bool = False, **inputs: Any) -> LoadedModel:
    specs = {name: InputSpec.model_validate(fields) for name, fields in inputs.items()}
    return torch_modules.load(folder, allow_pickle=allow_pickle, inputs=specs)


def test_exported_program_answers_like_module(tmp_path: Path) -> None:
    """An exported program answers as the module did."""
    module, content = net()
    live = loaded(folder_of(tmp_path, content))
    (tensor,) = live.inputs.tensors
    assert (tensor.name, tensor.dtype, tensor.dims) == ("input", "float32", ("batch", 4))
    assert live.output_names == ("output",)
    for batch in (1, 2, 5):
        feed = live.inputs.make({"batch": batch})
        expected = module(torch.from_numpy(feed["input"])).detach().numpy()
        assert np.abs(live.ask(feed)["output"] - expected).max() < 1e-6


def test_fixed_export_size_is_fixed_axis(tmp_path: Path) -> None:
    """What was exported with one size is an axis that does not move."""
    live = loaded(folder_of(tmp_path, net(batch=1)[1]))
    result = find_dynamic_axes(lambda sizes: live.ask(live.inputs.make(sizes)), live.inputs, live.inputs.axes)
    (fixed,) = result.fixed
    assert (fixed.axis, fixed.size, fixed.by) == ("batch", 1, "model")
    assert "input.size()[0] == 1" in fixed.reason


class _Scorer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        average = self.table(ids).mean(1)
        return {"scores": average, "sums": x.sum(1) + average[:, :1]}


def test_axes_and_indices_follow_export(tmp_path: Path) -> None:
    """Axes have the ranges, and indices the values, that the program was exported with."""
    narrow = torch.export.Dim("narrow", min=3, max=9)
    examples = [torch.full((2, 7), 49), torch.randn(2, 5, 6)]
    content = saved(_Scorer(), examples, [{0: AUTO, 1: AUTO}, {0: AUTO, 1: narrow}])
    live = loaded(folder_of(tmp_path, content, described="flavors: {}"))
    assert [tensor.dims for tensor in live.inputs.tensors] == [("batch", "sequence"), ("batch", "x_dim1", 6)]
    assert live.inputs.axes["x_dim1"] == AxisRange(min=3, opt=5, max=9)
    assert live.inputs.limits == {"x_dim1": 9}
    assert live.output_names == ("scores", "sums")
    drawn = live.inputs.make({"batch": 16, "sequence": 64, "x_dim1": 4})["ids"]
    assert 40 < drawn.max() <= 49
    with pytest.raises(AssertionError, match="Guard failed"):
        live.ask(live.inputs.make({"batch": 2, "sequence": 7, "x_dim1": 10}))


def test_spec_names_axes_without_contradiction(tmp_path: Path) -> None:
    """The spec may name axes but not contradict the program."""
    folder = folder_of(tmp_path, net()[1])
    assert loaded(folder, input={"dims": ["rows", 4]}).inputs.tensors[0].dims == ("rows", 4)
    with pytest.raises(UsageError, match="has no input other"):
        loaded(folder, other={"dims": ["rows", 4]})


def test_non_tensor_program_refused(tmp_path: Path) -> None:
    """A program that takes more than tensors is refused."""

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: int) -> torch.Tensor:
            return x * factor

    program = torch.export.export(Scaled(), (torch.randn(2, 4), 3))
    torch.export.save(program, tmp_path / "model.pt2")
    (tmp_path / "MLmodel").write_text("flavors: {}")
    with pytest.raises(SourceError, match="something else than a tensor as its input 1"):
        loaded(tmp_path)


def test_pickled_module_needs_permission(tmp_path: Path) -> None:
    """A pickled module is read only where that is allowed."""
    module = net()[0]
    torch.save(module, tmp_path / "model.pth")
    (tmp_path / "MLmodel").write_text(SIGNED)
    with pytest.raises(SourceError, match="reading it can run any code") as refused:
        loaded(tmp_path)
    assert "--allow-pickle" in refused.value.remedy
    live = loaded(tmp_path, allow_pickle=True)
    (tensor,) = live.inputs.tensors
    assert tensor.dims == ("batch", 4)
    feed = live.inputs.make({"batch": 3})
    expected = module(torch.from_numpy(feed[tensor.name])).detach().numpy()
    assert np.abs(live.ask(feed)["output"] - expected).max() < 1e-6


def test_unsigned_pickle_described_by_spec(tmp_path: Path) -> None:
    """A pickled module without a signature is described by the spec."""
    torch.save(net()[0], tmp_path / "model.pth")
    (tmp_path / "MLmodel").write_text("flavors: {}")
    with pytest.raises(UsageError, match="does not say what it takes"):
        loaded(tmp_path, allow_pickle=True)
    live = loaded(tmp_path, allow_pickle=True, rows={"dtype": "float32", "dims": ["batch", 4]})
    assert [tensor.name for tensor in live.inputs.tensors] == ["rows"]


@pytest.mark.parametrize("signature", ["[", "[3]", '[{"type": "tensor"}]', '{"a": 1}'])
def test_a_damaged_signature_is_said(signature: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, net()[1], described=f"signature:\n  inputs: '{signature}'\n")
    with pytest.raises(SourceError, match="its signature cannot be read"):
        loaded(folder)


def test_outputs_named_by_place() -> None:
    """Outputs are named by where they stand in the answer."""
    tensor = torch.zeros(1)
    assert output_names(tensor) == ("output",)
    assert output_names((tensor, [tensor, None])) == ("output_0", "output_1_0")
    assert output_names(OrderedDict(a=tensor, b={"c": tensor})) == ("a", "b_c")
