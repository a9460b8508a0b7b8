"""The lint against a real parser and builder, those of TensorRT-RTX: what the one refuses, the other refuses.

What RTX refuses is a strong lead; what it takes proves nothing about a plan of TensorRT proper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.lint import view
from plansmith.compilers.precision.lint.linter import Finding
from plansmith.compilers.trt.lint import lint_for_plan
from plansmith.compilers.trt.rtx import API
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import EngineKind

from ....support.precision.given_files import right_graphs, with_mistake
from ....support.precision.mistakes import MISTAKES
from ....support.precision.planting import Mistake
from ....support.precision.small_graphs import DOUBTFUL, LIMITS, REFUSED_TYPES, SINCE, graph
from ....support.tensorrt.rtx import Library, Outcome

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("rtx")]

# What differs: why, and the graphs; in the end, operators.
DIFFERENT = {
    "built, with numbers that are wrong without a word": (
        "constant_that_a_cast_overflows",
        "epsilon_that_is_zero_in_fp16",
        "mean_in_half",
        "no_zero_point_at_all",
        "read_with_another_scale_than_written",
        "subnormal_scale",
        "takes the batch first",
        "unsigned_activation",
    ),
    "built, and less accurate than the lint allows": (
        "bias_in_int8",
        "quantised_answer",
        "quantised_attention_product",
        "quantised_mask",
        "quantised_normalisation",
        "quantised_probabilities",
        "quantised_scores",
    ),
    "built, against NVIDIA's guide to explicit quantisation": (
        "fp8_beside_int8",
        "pooling_between_q_and_dq",
        "scale_per_channel_of_an_activation",
        "scales_per_input_channel",
    ),
    "built, and clients would have to send FP32 for FP64": ("clients_send_doubles",),
    "built, and ONNX's own checker refuses it": ("cast_behind_what_reads_it",),
    "RTX 1.7.1 reads what the release notes of TensorRT have since 11.5": ("since 11.5: names no axes",),
    "a build of Attention ends RTX's process on a CPU": (
        "since 10.14: before 10.14",
        "since 10.15: attends without an axis of heads",
        "within: attends over cached keys",
        "within: gives its softmax a precision",
    ),
    "a plugin of TensorRT, whose library RTX does not have": ("DFT", "DeformConv"),
    "in no release notes of TensorRT until 11.5": ("CausalConvWithState", "LinearAttention"),
}
_REASONS = {case: reason for reason, cases in DIFFERENT.items() for case in cases}
_MAY_FAIL = {"deciding-contents", "standard-plugin"}
"""Warnings that TensorRT may refuse the graph."""
_CONTENTS = {"min": [1, 3, 4, 4], "opt": [2, 3, 4, 4], "max": [4, 3, 4, 4]}
"""Of an input that holds a shape."""


_right_graphs = cache(right_graphs)


def right(name: str) -> onnx.ModelProto:
    return _right_graphs()[name]


def planted(mistake: Mistake) -> onnx.ModelProto:
    return with_mistake(right(mistake.into), mistake)


def cases() -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    """The graphs of the lint's tests, by name."""
    for name in dict.fromkeys(mistake.into for mistake in MISTAKES):
        yield f"right: {name}", partial(right, name)
    for mistake in MISTAKES:
        if EngineKind.TENSORRT in mistake.engines:
            yield mistake.name, partial(planted, mistake)
    for description, beyond, within in LIMITS:
        yield description, partial(graph, beyond)
        yield f"within: {description}", partial(graph, within)
    for _, description, text, opset, _, first in SINCE:
        yield f"since {first}: {description}", partial(graph, text, opset)
    for operator, kind, text in REFUSED_TYPES:
        yield f"{operator} of {kind}", partial(graph, text, 22)
    for place, (finding, text) in enumerate(DOUBTFUL):
        yield f"doubtful {place}: {finding}", partial(graph, text)


CASES = dict(cases())
OPERATORS = sorted(
    {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    | {*view._READ.split(), *view._SINCE, *view._OWN.split()}
)


def profile_of(model: onnx.ModelProto) -> dict[str, Any] | None:
    """A profile in which what varies is 1, 2 and 4; None for a graph whose shapes are all fixed."""
    shapes: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for entry in model.graph.input:
        kind = entry.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        if None in dims:
            sizes = {"min": 1, "opt": 2, "max": 4}
            shapes[entry.name] = {key: [size if dim is None else dim for dim in dims] for key, size in sizes.items()}
        elif kind.elem_type == onnx.TensorProto.INT64 and dims == [len(_CONTENTS["min"])]:
            values[entry.name] = _CONTENTS
    return {"shapes": shapes, "values": values} if shapes or values else None


def judged(library: Library, folder: Path, model: onnx.ModelProto) -> tuple[list[Finding], Outcome]:
    """What the lint finds in a graph for the TensorRT that the library is like, and what the library makes of it."""
    profile = profile_of(model)
    outcome = library.build(folder, model.SerializeToString(), *([profile] if profile else []))
    findings = lint_for_plan(
        folder / "model.onnx",
        profiles=[OptimizationProfile(name="all", **profile)] if profile else [],
        component=onnx_files.describe(folder / "model.onnx"),
        tensorrt=API,
    )
    return findings, outcome


@pytest.mark.parametrize("case", CASES)
def test_lint_agrees_with_library(case: str, library: Library, tmp_path: Path) -> None:
    """The lint refuses what the library refuses."""
    findings, outcome = judged(library, tmp_path, CASES[case]())
    errors = [finding for finding in findings if finding.severity == "error"]
    may_fail = bool(errors) or any(finding.id in _MAY_FAIL for finding in findings)
    assert outcome.is_built or may_fail or outcome.error in {"EngineError", "signal 11"}, outcome
    is_different = bool(errors) if outcome.is_built else not may_fail
    assert is_different is (case in _REASONS), (errors, outcome, _REASONS.get(case))


def test_operator_table_matches_library(library: Library) -> None:
    """The table of operators is that of the library."""
    version = view.version_of(API)
    firsts = {name: view.since(name) for name in OPERATORS}
    ours = {name for name, first in firsts.items() if view.is_own(name) or (first and first <= version)}
    assert len(OPERATORS) > 200
    assert ours ^ library.operators(OPERATORS) == _REASONS.keys() & firsts.keys()


def test_known_differences_are_compared() -> None:
    """What is known to differ is compared."""
    assert _REASONS.keys() <= {*CASES, *OPERATORS}
