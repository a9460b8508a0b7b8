"""Speed as a test wants it: the real race and its intervals, with costs instead of this machine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import onnx
import pytest

from plansmith.compilers.precision import benchmark
from plansmith.compilers.precision.benchmark import Race

Costs = Mapping[str, Sequence[float]]


def give_costs(monkeypatch: pytest.MonkeyPatch, **costs: Sequence[float]) -> list[str]:
    """Have every graph cost what its precision costs: fp32, fp16, int8; one value a run, over and over.

    Returns:
        The precisions of the graphs that are measured, as they are.
    """
    measured: list[str] = []

    def compare(candidates: Mapping[str, Path], baseline: str, feed: Any) -> Race:
        assert feed
        now = [0.0]

        def runner(path: Path) -> Callable[[], None]:
            precision = precision_of(path)
            measured.append(precision)
            each = cycle(costs[precision])

            def run() -> None:
                now[0] += next(each)

            return run

        runs = {name: runner(path) for name, path in candidates.items()}
        return benchmark.race(runs, baseline, setting="costs of a test", clock=lambda: now[0], wall=lambda: 0.0)

    monkeypatch.setattr(benchmark, "compare", compare)
    return measured


def precision_of(path: Path) -> str:
    """What a graph's weights and nodes show."""
    graph = onnx.load(path).graph
    if {node.op_type for node in graph.node} & {"QuantizeLinear", "DynamicQuantizeLinear"}:
        return "int8"
    return "fp16" if any(t.data_type == onnx.TensorProto.FLOAT16 for t in graph.initializer) else "fp32"
