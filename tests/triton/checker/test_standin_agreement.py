"""What the stand-in for the ONNX Runtime backend refuses, the rules call an error, and what it loads, they pass.

That a real Triton with the stand-in refuses and loads these very models is what
tests/triton/standin/test_standin.py shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import pytest

from ...support.checker.backend_rules import findings
from ..standin import test_standin as standin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ...support.checker.written import Written

    Graph = Callable[[int | str], onnx.ModelProto]

OTHERS = {
    **dict.fromkeys(("zero_size", "no_dims", "preferred", "typing_error"), "Triton's core refuses it: config.*"),
    "fixed_output": "a warning: ONNX Runtime may infer a size that the graph does not tell",
    "no_file": "the file is missing for every backend: files.model",
    "gpu": "there is no GPU on this machine, and nobody said so to the checker: config.instance-without-gpu",
    **dict.fromkeys(
        ("accelerator_openvino", "sequence", "no_outputs"),
        "the real backend serves it, or may: the stand-in alone refuses it",
    ),
}
"""What the server refuses for a reason that is not of these rules."""


def errors(root: Path) -> list[str]:
    return [
        finding.rule
        for finding in findings(root)
        if finding.severity == "error" and finding.rule.startswith("onnxruntime.")
    ]


@pytest.mark.parametrize("name", sorted(standin.BROKEN.keys() - OTHERS.keys()))
def test_stand_in_refusals_are_errors(name: str, config: str, graph: Graph, written: Written) -> None:
    """What the stand in refuses is an error."""
    broken = standin.BROKEN[name]
    # On CPU instances the real backend does not read what is for GPUs; the stand-in does.
    text = config.replace(broken.old, broken.new).replace("kind: KIND_CPU", "")
    model = b"no ONNX at all" if name == "no_onnx" else graph(broken.batch).SerializeToString()
    written.add(name, text, {"1/model.onnx": model})
    assert errors(written.root)


@pytest.mark.parametrize("name", sorted({*standin.GOOD, *OTHERS} - {"no_file"}))
def test_loaded_configurations_pass(name: str, config: str, graph: Graph, written: Written) -> None:
    """What the stand-in loads is passed, and what is not of these rules is left alone."""
    old, new, batch = standin.GOOD.get(name, ("", "", "n"))
    if name in OTHERS:
        old, new = standin.BROKEN[name].old, standin.BROKEN[name].new
    text = config.replace(old, new)
    if name not in {"zero_size", "no_dims"}:  # a rank or size that is also not the graph's
        written.add(name, text, {"1/model.onnx": graph(batch).SerializeToString()})
        assert errors(written.root) == []


OTHER_GRAPHS: dict[str, tuple[str, Callable[[], Any]]] = {
    "a lookup": (standin.LOOKUP_CONFIG, standin.lookup),
    "a scalar": (standin.SCALAR_CONFIG, standin.scalar),
    "a default": (standin.OPTIONAL_CONFIG, standin.scaled),
}


@pytest.mark.parametrize(("config", "make"), OTHER_GRAPHS.values(), ids=OTHER_GRAPHS.keys())
@pytest.mark.parametrize("outside", [False, True], ids=["in one file", "with its weights outside"])
def test_other_served_graphs_pass(
    config: str, make: Callable[[], onnx.ModelProto], outside: bool, written: Written
) -> None:
    """Other graphs that the stand-in serves are passed."""
    folder = written.add("m", config, ["1/model.onnx/"])
    external: dict[str, Any] = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(make(), folder / "1" / "model.onnx" / "model.onnx", **(external if outside else {}))
    assert errors(written.root) == []
