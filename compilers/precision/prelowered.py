"""Graphs that somebody lowered before they came here: looked over in the worker, and taken as they are or not."""

from __future__ import annotations

from collections.abc import Callable

from plansmith.compilers.precision.lint.linter import Finding, accept, lint, refuse
from plansmith.compilers.precision.requests import LintWarnings, PrelowerCheckRequest
from plansmith.data.reference import StoredCases


def check_prelowered(request: PrelowerCheckRequest, progress: Callable[[str], None]) -> LintWarnings:
    """Look for mistakes in a lowered graph that its author made, which is its own reference: no gate would see them.

    Raises:
        ExportError: the graph has errors.
    """
    import onnx

    model, data = request.onnx, request.data
    component = model.components["model"]
    is_real = data is not None and data.real
    progress("looking for mistakes in the lowered graph")
    findings = lint(
        onnx.load(request.folder / component.file),
        engine=request.engine,
        samples=StoredCases(data.calibration.cases, request.data_folder) if data is not None and is_real else None,
        promised=component,
        mask_input=model.mask_input,
    )
    findings = accept(findings, request.accepted)
    refuse(findings, what=f"the file, which is {model.precision} already,")
    return LintWarnings(warnings=tuple(_line(finding) for finding in findings))


def _line(finding: Finding) -> str:
    return f"{' '.join(filter(None, (finding.node, finding.words)))} [{finding.id}]"
