"""Graphs that somebody lowered before they came here: looked over in the heavy child, and taken as they are or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plansmith.compilers.precision.lint.linter import Finding, accept, lint, refuse
from plansmith.data.reference import StoredCases
from plansmith.records.model import DataSet, EngineKind, OnnxModel


def check_given(
    *,
    onnx: Mapping[str, Any],
    folder: str,
    data: Mapping[str, Any] | None,
    data_folder: str,
    engine: str,
    accepted: Sequence[str],
    progress: Callable[[str], None],
) -> dict[str, list[str]]:
    """Look for mistakes in a lowered graph that its author made, which is its own reference: no gate would see them.

    Args:
        onnx: the graph as it was taken; its own interface is what it promises.
        folder: holds its files.
        data: samples (a DataSet); only those that somebody gave tell whether scales fit, random values do not.
        data_folder: holds theirs.
        engine: what will run it.
        accepted: findings, by their id, that are no reason to refuse it.
        progress: told what is done.

    Returns:
        What is doubtful and no reason to refuse it: `warnings`, a line each.

    Raises:
        ExportError: the graph has errors.
    """
    import onnx as onnx_library

    model = OnnxModel.model_validate(onnx)
    component = model.components["model"]
    samples = DataSet.model_validate(data) if data is not None else None
    real = samples is not None and samples.real
    progress("looking for mistakes in the lowered graph")
    findings = lint(
        onnx_library.load(Path(folder, component.file)),
        engine=EngineKind(engine),
        samples=StoredCases(samples.calibration.cases, Path(data_folder)) if samples is not None and real else None,
        promised=component,
        mask_input=model.mask_input,
    )
    findings = accept(findings, accepted)
    refuse(findings, what=f"the file, which is {model.precision} already,")
    return {"warnings": [_line(finding) for finding in findings]}


def _line(finding: Finding) -> str:
    return f"{' '.join(filter(None, (finding.node, finding.words)))} [{finding.id}]"
