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
from plansmith.sources.dynamic_axes.find import find_dynamic_axes
from plansmith.sources.loaded_model import LoadedModel
from plansmith.sources.pytorch import module as torch_modules
from plansmith.sources.pytorch.module import output_names

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


def test_an_exported_program_answers_as_the_module_did(tmp_path: Path) -> None:
    module, content = net()
    live = loaded(folder_of(tmp_path, content))
    (tensor,) = live.inputs.tensors
    assert (tensor.name, tensor.dtype, tensor.dims) == ("input", "float32", ("batch", 4))
    assert live.output_names == ("output",)
    for batch in (1, 2, 5):
        feed = live.inputs.make({"batch": batch})
        expected = module(torch.from_numpy(feed["input"])).detach().numpy()
        assert np.abs(live.ask(feed)["output"] - expected).max() < 1e-6


def test_what_was_exported_with_one_size_is_an_axis_that_does_not_move(tmp_path: Path) -> None:
    live = loaded(folder_of(tmp_path, net(batch=1)[1]))
    found = find_dynamic_axes(lambda sizes: live.ask(live.inputs.make(sizes)), live.inputs, live.inputs.axes)
    (fixed,) = found.fixed
    assert (fixed.axis, fixed.size, fixed.by) == ("batch", 1, "model")
    assert "input.size()[0] == 1" in fixed.reason


class _Scorer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.table(ids).mean(1)
        return {"scores": found, "sums": x.sum(1) + found[:, :1]}


def test_axes_have_the_ranges_and_indices_the_values_that_the_program_was_exported_with(tmp_path: Path) -> None:
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


def test_the_spec_may_name_axes_and_not_contradict_the_program(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, net()[1])
    assert loaded(folder, input={"dims": ["rows", 4]}).inputs.tensors[0].dims == ("rows", 4)
    with pytest.raises(UsageError, match="has no input other"):
        loaded(folder, other={"dims": ["rows", 4]})


def test_a_program_that_takes_more_than_tensors_is_refused(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: int) -> torch.Tensor:
            return x * factor

    program = torch.export.export(Scaled(), (torch.randn(2, 4), 3))
    torch.export.save(program, tmp_path / "model.pt2")
    (tmp_path / "MLmodel").write_text("flavors: {}")
    with pytest.raises(SourceError, match="something else than a tensor as its input 1"):
        loaded(tmp_path)


def test_a_pickled_module_is_read_only_where_that_is_allowed(tmp_path: Path) -> None:
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


def test_a_pickled_module_without_a_signature_is_described_by_the_spec(tmp_path: Path) -> None:
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


def test_outputs_are_named_by_where_they_stand_in_the_answer() -> None:
    one = torch.zeros(1)
    assert output_names(one) == ("output",)
    assert output_names((one, [one, None])) == ("output_0", "output_1_0")
    assert output_names(OrderedDict(a=one, b={"c": one})) == ("a", "b_c")
