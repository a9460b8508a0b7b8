"""Right graphs pass the lint, wrong ones are refused with the node and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.lint import linter as lint_module
from plansmith.compilers.precision.lint.linter import RULES, Finding, lint, refuse
from plansmith.errors import ExportError
from plansmith.records.model import EngineKind

from ....support.precision import lint_graphs
from ....support.precision.mistakes import MISTAKES
from ....support.precision.planting import Mistake

ENGINES = (EngineKind.TENSORRT, EngineKind.ONNXRUNTIME)


@pytest.fixture(scope="module")
def right() -> dict[str, onnx.ModelProto]:
    plain = {"attention": lint_graphs.attention(), "cnn": lint_graphs.cnn()}
    return {
        **{f"plain {name}": model for name, model in plain.items()},
        **{f"half {name}": lint_graphs.halved(model) for name, model in plain.items()},
        "attention": lint_graphs.quantised(plain["attention"], lint_graphs.PROJECTIONS),
        "cnn": lint_graphs.quantised(plain["cnn"], lint_graphs.LAYERS),
    }


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["plain attention", "plain cnn", "half attention", "half cnn", "attention", "cnn"])
def test_right_graph_has_no_findings(right: dict[str, onnx.ModelProto], name: str, engine: EngineKind) -> None:
    """A graph that is lowered correctly has no findings."""
    model = right[name]
    plain = onnx_files.describe_model(right[f"plain {name.rsplit(maxsplit=1)[-1]}"], Path("model.onnx"))
    assert lint(model, engine=engine, samples=lint_graphs.cases_of(model), promised=plain) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_planted_mistake_refused(right: dict[str, onnx.ModelProto], mistake: Mistake) -> None:
    """A planted mistake is found and refused."""
    plain = right[f"plain {mistake.into.split()[-1]}"]
    planted = copy_of(right[mistake.into])
    planted = mistake.plant(Graph(planted)) or planted
    promised = onnx_files.describe_model(plain, Path("model.onnx"))
    for engine in ENGINES:
        findings = lint(planted, engine=engine, samples=lint_graphs.cases_of(plain), promised=promised)
        errors = {finding.id for finding in findings if finding.severity == "error"}
        if engine not in mistake.engines:
            assert mistake.finding not in errors
            continue
        assert mistake.finding in errors
        with pytest.raises(ExportError, match=rf"\[{mistake.finding}\]") as refused:
            refuse([finding for finding in findings if finding.id == mistake.finding])
        assert refused.value.remedy


def test_every_error_is_planted() -> None:
    """Every error that the lint knows is planted at least once."""
    folder = Path(str(lint_module.__file__)).parent
    finding_ids = {i for file in folder.glob("*.py") for i in re.findall(r'Finding\("([a-z0-9-]+)"', file.read_text())}
    warnings = {
        "branch-names",
        "computed-scale",
        "double-precision",
        "half-infinite-mask",
        "half-norm",
        "half-quantised",
        "library-plugin",
        "opset",
        "standard-plugin",
        "torn-fusion",
    }
    assert len(finding_ids) > 30
    assert finding_ids - warnings == {mistake.finding for mistake in MISTAKES}


def test_unreadable_opset_is_error(right: dict[str, onnx.ModelProto]) -> None:
    """An opset that ONNX Runtime does not read is an error."""
    findings = lint(right["plain cnn"], engine=EngineKind.ONNXRUNTIME, max_opset=lint_graphs.OPSET - 1)
    assert [(f.id, f.severity) for f in findings] == [("opset", "error")]


def test_the_lint_changes_nothing(right: dict[str, onnx.ModelProto]) -> None:
    model = copy_of(right["attention"])
    for node in model.graph.node:
        node.name = ""
    before = model.SerializeToString(deterministic=True)
    lint(model, engine=EngineKind.TENSORRT, samples=lint_graphs.cases_of(model))
    assert model.SerializeToString(deterministic=True) == before


def test_values_unjudged_without_samples(right: dict[str, onnx.ModelProto]) -> None:
    """Without samples, nothing is said about the values."""
    planted = copy_of(right["cnn"])
    next(m for m in MISTAKES if m.finding == "clipped-calibration").plant(Graph(planted))
    assert lint(planted, engine=EngineKind.TENSORRT) == []


def test_padding_needs_no_scale_room() -> None:
    """The word that fills batches up is fifty times as large as the others, and the scale was made without it."""
    model = lint_graphs.attention()
    graph = Graph(model)
    table = graph.floats("words").copy()
    scale = np.asarray(np.abs(table[1:]).max() / 127, np.float32)
    table[0] *= 50
    graph.set_initializer("words", table)
    lint_graphs.insert_pair(graph, "embedded", [n for n in model.graph.node if n.name == "norm"], scale)
    cases = lint_graphs.cases_of(model)
    for case in cases:
        case.feed["ids"][:] = case.feed["ids"].clip(1)
        case.feed["ids"][case.feed["mask"] == 0] = 0

    def finding_ids(mask_input: str | None) -> list[str]:
        findings = lint(model, engine=EngineKind.ONNXRUNTIME, samples=cases, mask_input=mask_input)
        return [finding.id for finding in findings if finding.severity == "error"]

    assert finding_ids(None) == ["clipped-calibration"]
    assert finding_ids("mask") == []


def test_rule_names_its_source() -> None:
    """Every rule says where it comes from."""
    assert all(rule.__doc__ and len(rule.__doc__) > 25 for rule in RULES)
    assert len(set(RULES)) == len(RULES)


def test_warnings_refuse_no_graph() -> None:
    """Warnings do not refuse a graph."""
    refuse([Finding("half-quantised", "warning", "conv", "has its weight quantised", "quantise both")])


def test_refusal_varies_error_kinds() -> None:
    """A refusal names three kinds of errors before a second of one kind."""
    findings = [Finding(i, "error", f"{i}-{n}", "is wrong", f"mend {i}") for i in ("a", "b", "c") for n in range(4)]
    with pytest.raises(ExportError) as refused:
        refuse(findings)
    assert [word in refused.value.message for word in ("a-0", "b-0", "c-0", "a-1", "12 errors", "and 9 more")] == [
        True,
        True,
        True,
        False,
        True,
        True,
    ]
    assert refused.value.remedy == "mend a; mend b; mend c; or, to have it as it is, `lowering: {accept: [a, b, c]}`"


def test_float_activations_are_warning(right: dict[str, onnx.ModelProto]) -> None:
    """A weight with floating-point activations is a warning for TensorRT."""
    planted = copy_of(right["cnn"])
    next(node for node in planted.graph.node if node.name == "conv2").input[0] = "pool_x"
    graph = Graph(planted)
    pair = [n for n in planted.graph.node if n.name in {"pool_x_Q", "pool_x_DQ"}]
    graph.replace(pair, [])
    findings = lint(planted, engine=EngineKind.TENSORRT)
    assert [(f.id, f.severity, f.node) for f in findings] == [("half-quantised", "warning", "conv2")]


def test_infinite_where_is_warning(
    right: dict[str, onnx.ModelProto],
) -> None:
    """An infinite choice of Where is a warning, as the source may have meant it."""
    planted = copy_of(right["half attention"])
    graph = Graph(planted)
    add = next(node for node in planted.graph.node if node.name == "mask_add")
    infinite = graph.add_initializer("infinite", np.asarray(-np.inf, np.float16))
    cast_node = onnx.helper.make_node("Cast", ["mask"], ["seen"], "seen", to=onnx.TensorProto.BOOL)
    wide = onnx.helper.make_node("Unsqueeze", ["seen", "middle"], ["wide"], "wide")
    graph.replace(
        [add], [cast_node, wide, onnx.helper.make_node("Where", ["wide", "scaled", infinite], ["scores"], "choose")]
    )
    findings = lint(planted, engine=EngineKind.TENSORRT)
    assert [(f.id, f.severity, f.node) for f in findings] == [("half-infinite-mask", "warning", "choose")]


def test_quantiser_before_bias_is_warning(
    right: dict[str, onnx.ModelProto],
) -> None:
    """A quantiser between a product and its bias is a warning for TensorRT."""
    planted = copy_of(right["attention"])
    graph = Graph(planted)
    add = next(node for node in planted.graph.node if node.name == "out_bias")
    lint_graphs.insert_pair(graph, "out_x", [add], np.asarray(0.05, np.float32))
    findings = lint(planted, engine=EngineKind.TENSORRT)
    assert [(f.id, f.severity, f.node) for f in findings] == [("torn-fusion", "warning", "out_x_Q")]
