"""An axis that no graph follows is fixed, the least needed first, and the attempts are kept."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
import torch

from plansmith.compilers.export import exporters, torch_export
from plansmith.compilers.export.exporters import ExportJob
from plansmith.errors import ExportError
from plansmith.records.model import Tensor

from ...support.validation.graphs import silent
from .jobs import job_at

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"batch": 4, "height": 10, "sequence": 6}
SHAPES = {
    "traced": {"batch": 2, "height": 10, "sequence": 6},
    "single": {"batch": 1, "height": 10, "sequence": 6},
    "untraced": {"batch": 3, "height": 13, "sequence": 9},
}


class LoopsOver(torch.nn.Module):
    """A recurrence along an axis: every exporter unrolls it."""

    def __init__(self, *places: int) -> None:
        super().__init__()
        self.places = places

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for place in self.places:
            total = torch.zeros_like(x.select(place, 0))
            for step in range(x.shape[place]):
                total = total * 0.5 + x.select(place, step)
            x = x + total.unsqueeze(place)
        return (x,)


def exported(module: torch.nn.Module, folder: Path, optional: Sequence[str]) -> torch_export.Exported:
    def job(fixed: Sequence[str]) -> ExportJob:
        dims = tuple(SIZES[axis] if axis in fixed else axis for axis in SIZES)
        tensors = (Tensor(name="x", dtype="float32", dims=dims),)
        shapes = {
            name: {axis: size for axis, size in sizes.items() if axis not in fixed} for name, sizes in SHAPES.items()
        }
        return job_at(module, tensors, shapes, folder)

    return torch_export.export(job(()), silent, optional=optional, with_fixed=job)


@pytest.mark.slow
def test_only_unfollowed_axis_is_fixed(tmp_path: Path) -> None:
    """Only the axis that no graph follows is fixed."""
    export = exported(LoopsOver(2), tmp_path, ("height", "sequence", "batch"))
    assert list(export.given_up) == ["sequence"]
    assert export.component.inputs[0].dims == ("batch", "height", 6)
    assert any("differs from PyTorch at untraced" in str(a.problem) for a in export.attempts)
    (refusal,) = {f"{a.exporter}: {a.problem}" for a in export.attempts if a.exporter == "patched" and not a.fixed}
    assert export.given_up["sequence"] == refusal, (
        "the most able exporter's refusal, which names the axis, and no other's"
    )
    assert "ValueError" in refusal
    assert export.attempts[-1].fixed == ("sequence",)
    assert [a.problem is None for a in export.attempts] == [False] * (len(export.attempts) - 1) + [True]


def test_full_disk_ends_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk ends the export and gives up no axis."""
    tried = []

    def write(exporter: str, *_: object) -> None:
        tried.append(exporter)
        raise RuntimeError("advice") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporters, "write", write)
    with pytest.raises(RuntimeError, match="advice"):
        exported(LoopsOver(2), tmp_path, ("height", "sequence", "batch"))
    assert tried == ["torchscript"]


@pytest.mark.slow
def test_batch_axis_fixed_last(tmp_path: Path) -> None:
    """Two axes are fixed where one is not enough, and the batch comes last."""
    export = exported(LoopsOver(1, 2), tmp_path, ("height", "sequence", "batch"))
    assert set(export.given_up) == {"height", "sequence"}
    assert export.component.inputs[0].dims == ("batch", 10, 6)


@pytest.mark.slow
def test_requested_axis_is_kept(tmp_path: Path) -> None:
    """An axis that somebody asked for is never given up."""
    with pytest.raises(ExportError) as caught:
        exported(LoopsOver(2), tmp_path, ("height",))
    assert "patched: ValueError" in caught.value.message


@pytest.mark.slow
def test_named_dims_fixed_directly(tmp_path: Path) -> None:
    """Named dims are fixed without asking torch.export about others."""
    export = exported(LoopsOver(2), tmp_path, ("height", "sequence", "batch"))
    slow = [a.fixed for a in export.attempts if a.exporter != "torchscript" and a.fixed]
    assert all("sequence" in fixed for fixed in slow)
