"""Of several exporters, the first whose graph agrees with PyTorch wins; the others' reasons are kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from plansmith.compilers.export.exporters import ExportJob, Probe
from plansmith.compilers.export.torch_export import export, output_tensors
from plansmith.compilers.onnxrt import open_session
from plansmith.errors import ExportError
from plansmith.records.model import Tensor

from ..support.validation.graphs import silent

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"traced": (2, 16), "single": (1, 16), "untraced": (3, 23)}
AXES = ("batch", "sequence")


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2,)


class TimesPartOfItsLength(torch.nn.Module):
    """A share of a size that single precision may round otherwise: constant to the tracer, a symbol to torch.export."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * math.ceil(x.shape[1] * 0.6),)


class TimesPartOfItsLengthVariadic(TimesPartOfItsLength):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return super().forward(*tensors)


class SummedStepByStep(torch.nn.Module):
    """A loop over a dimension: unrolled at the traced length by both."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            total = total * 0.5 + x[:, step]
        return (total,)


class BranchesOnItsData(torch.nn.Module):
    """The tracer keeps the branch that it saw; torch.export refuses it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2 if x[0, 0] > 0 else -x,)


class IgnoresAnInput(torch.nn.Module):
    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        return (x * 2,)


def job_for(module: torch.nn.Module, folder: Path, *, inputs: tuple[str, ...] = ("x",)) -> ExportJob:
    probes = []
    for name, sizes in SIZES.items():
        feed = {i: np.random.default_rng(sum(sizes)).uniform(0.5, 1, size=sizes).astype(np.float32) for i in inputs}
        if name == "untraced":
            feed["x"][0, 0] = -1
        with torch.inference_mode():
            answer = module(*(torch.from_numpy(a) for a in feed.values()))
        probes.append(Probe(name, dict(zip(AXES, sizes, strict=True)), feed, {"y": answer[0].numpy()}))
    return ExportJob(
        module=module.eval(),
        inputs=tuple(Tensor(name=i, dtype="float32", dims=AXES) for i in inputs),
        outputs=output_tensors(("y",), probes),
        probes=probes,
        mask_input=None,
        opset=18,
        folder=folder,
    )


def test_cheaper_exporter_goes_first(tmp_path: Path) -> None:
    """The cheaper exporter goes first and its good graph is taken."""
    exported = export(job_for(Doubled(), tmp_path), silent)
    assert [(a.exporter, a.problem) for a in exported.attempts] == [("torchscript", None)]
    assert (exported.component.inputs[0].dims, exported.component.outputs[0].dims, exported.component.opset) == (
        AXES,
        AXES,
        18,
    )
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx"}


@pytest.mark.slow
@pytest.mark.parametrize("module", [TimesPartOfItsLength(), TimesPartOfItsLengthVariadic()], ids=["named", "variadic"])
def test_untraced_error_tries_other_exporter(module: torch.nn.Module, tmp_path: Path) -> None:
    """A graph that is wrong at an untraced shape gives way to the other exporter."""
    exported = export(job_for(module, tmp_path), silent)
    tried = [(a.exporter, a.traced) for a in exported.attempts]
    assert tried == [("torchscript", "traced"), ("torchscript", "untraced"), ("dynamo", "traced")]
    assert exported.attempts[0].problem is not None
    assert exported.attempts[0].problem.startswith("differs from PyTorch at untraced (batch 3, sequence 23): y: ")
    assert exported.attempts[-1].problem is None
    assert exported.component.inputs[0].dims == AXES
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx"}
    longer = np.ones((2, 40), np.float32)
    np.testing.assert_allclose(
        open_session(tmp_path / exported.component.file).run(["y"], {"x": longer})[0], longer * 24
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (SummedStepByStep(), "ValueError: Found the following conflicts between user-specified ranges and inferred"),
        (BranchesOnItsData(), "GuardOnDataDependentSymNode: Could not guard on data-dependent expression"),
    ],
    ids=["a loop", "a branch"],
)
def test_wrong_exports_refused_with_reasons(module: torch.nn.Module, reason: str, tmp_path: Path) -> None:
    """A model that every exporter gets wrong is refused with all reasons."""
    with pytest.raises(ExportError) as caught:
        export(job_for(module, tmp_path), silent)
    _, first, *others = caught.value.message.splitlines()
    assert first.startswith("  torchscript: differs from PyTorch at untraced")
    assert [line.partition(": ")[0].strip() for line in others] == ["dynamo", "patched"]
    for line in others:
        assert line.partition(": ")[2].startswith(reason)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_lost_input_tries_other_exporter(tmp_path: Path) -> None:
    """A graph that lost an input gives way to one that kept it."""
    exported = export(job_for(IgnoresAnInput(), tmp_path, inputs=("x", "unused")), silent)
    assert exported.attempts[0].problem == "the graph does not use the input unused"
    assert [t.name for t in exported.component.inputs] == ["x", "unused"]


def test_output_axes_named_by_movement() -> None:
    """An output's axes are named by watching them move."""
    probes = [
        Probe(
            name,
            {"batch": batch, "sequence": length},
            {},
            {
                "hidden": np.zeros((batch, length, 4)),
                "pooled": np.zeros((batch, 4)),
                "odd": np.zeros((batch, 2 * length)),
            },
        )
        for name, (batch, length) in SIZES.items()
    ]
    assert [t.dims for t in output_tensors(("hidden", "pooled", "odd"), probes)] == [
        ("batch", "sequence", 4),
        ("batch", 4),
        ("batch", "odd_dim1"),
    ]
