"""A cause is found in what really fails: each has a reproduction of a few lines, run with the installed torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plansmith.fleet.zoo.records import CAUSES, KnownCause, ZooRow, cause_of, explained


class Sampled(torch.nn.Module):
    """Draws as many places of each image as its mask leaves, as ViLT's embeddings do."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        chosen = torch.multinomial(torch.ones(x.shape[1]), mask.sum(1).max())  # type: ignore[arg-type]
        return x[:, chosen]


def sampled_by_torchscript(folder: Path) -> None:
    arguments = (torch.rand(2, 8), torch.ones(2, 8, dtype=torch.int64))
    torch.onnx.export(Sampled(), arguments, str(folder / "sampled.onnx"), dynamo=False)


REPRODUCTIONS: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (sampled_by_torchscript,)}


def problem_of(reproduce: Callable[[Path], None], folder: Path) -> str:
    """What a reproduction fails with, in the words of a row; empty where it does not fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reproduce(folder)
        except Exception as error:  # noqa: BLE001 - exporters raise anything
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.description)
def test_reproduction_matches_its_cause(cause: KnownCause, tmp_path: Path) -> None:
    """A reproduction fails with what its cause is found by."""
    file, _, name = cause.reference.partition("::")
    assert Path(file).name == Path(__file__).name
    assert cause_of(problem_of(REPRODUCTIONS[name], tmp_path)) == cause


def test_unknown_failure_has_no_cause() -> None:
    """What is not known stays without a cause."""
    assert cause_of("RuntimeError: something else") is None
    row = ZooRow(name="a", scheme="hf", outcome="failed", problem="RuntimeError: something else")
    assert explained(row) == row


def test_wrong_row_told_its_cause() -> None:
    """A right row needs no cause, and a wrong one is told its own."""
    problem = "SymbolicValueError: Expected node type 'onnx::Constant' for argument 'num_samples' of node 'multinomial'"
    assert explained(ZooRow(name="a", scheme="hf", outcome="right", problem=problem)).cause == ""
    row = explained(ZooRow(name="a", scheme="hf", outcome="failed", problem="no exporter", attempts=(problem,)))
    assert row.cause == "the number of samples that are drawn depends on the inputs' values"
    assert row.reference == "tests/fleet/zoo/test_causes.py::sampled_by_torchscript"
