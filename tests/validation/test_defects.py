"""A defect planted in a real model's graph is refused, and by its name."""

from __future__ import annotations

import pytest

from plansmith.errors import GateError
from plansmith.records.model import Precision
from plansmith.validation.comparison import TOLERANCES
from plansmith.validation.verdict import require_passed

from ..support.validation import defects
from ..support.validation.graphs import Change, Exported

pytestmark = pytest.mark.slow

FP32 = TOLERANCES[Precision.FP32]
SMALLEST_EXCESS = 3


@pytest.mark.parametrize("plant", defects.DEFECTS.values(), ids=defects.DEFECTS.keys())
def test_a_graph_is_refused_when(plant: Change, minilm: Exported, name: str) -> None:
    graph = minilm.graph()
    plant(graph)
    report = minilm.judge(graph, name)

    assert report.verdict == "failed"
    assert len(report.comparisons) == len(minilm.onnx.reference.cases) * 2, "it answered everything"
    worst = report.worst()
    excess = max(
        max(row["max_relative"] / FP32.max_relative, row["quantile_relative"] / FP32.quantile_relative)
        for row in worst.values()
    )
    assert excess > SMALLEST_EXCESS
    with pytest.raises(GateError):
        require_passed(report)


def test_traced_length_positions_found_longer(minilm: Exported, name: str) -> None:
    """Positions that end at the traced length are found at longer shapes only."""
    graph = minilm.graph()
    defects.positions_end_at_the_traced_length(graph)
    report = minilm.judge(graph, name)
    assert {c.case for c in report.comparisons if c.failures} == {"untraced", "opt", "max"}


def test_traced_length_graph_refused(minilm: Exported, name: str) -> None:
    """A graph that answers at the traced length only is refused."""
    graph = minilm.graph()
    defects.traced_length_baked_in(graph)
    with pytest.raises(GateError, match=r"untraced \(3x23\)"):
        require_passed(minilm.judge(graph, name))


def test_reordered_samples_found(minilm: Exported, name: str) -> None:
    """Samples in another order are found wherever there is more than one."""
    graph = minilm.graph()
    defects.samples_reversed(graph)
    report = minilm.judge(graph, name)
    assert {(c.case, c.output) for c in report.comparisons if c.failures} == {
        (case, "pooler_output") for case in ("traced", "untraced", "opt", "max")
    }


def test_ignored_token_types_are_refused(minilm: Exported, name: str) -> None:
    graph = minilm.graph()
    defects.token_types_ignored(graph)
    assert minilm.judge(graph, name).verdict == "failed"


def test_exchanged_outputs_refused_by_interface(minilm: Exported, name: str) -> None:
    """Exchanged outputs are refused by their interface."""
    graph = minilm.graph()
    defects.outputs_exchanged(graph)
    with pytest.raises(GateError, match="inputs or outputs"):
        minilm.judge(graph, name)
