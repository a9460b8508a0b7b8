"""Worker requests on the precision of graphs."""

from __future__ import annotations

from pathlib import Path

from plansmith.config.engine_options import LoweringRequest
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import DataSet, EngineKind, LoweredModel, OnnxModel, Record


class LowerRequest(Record):
    """Request to lower the precision of a graph.

    Attributes:
        onnx: the FP32 graph and its reference.
        folder: holds their files.
        data: samples for calibration.
        data_folder: holds theirs.
        request: the precision, and how to get there.
        out: the folder to write to.
    """

    onnx: OnnxModel
    folder: Path
    data: DataSet
    data_folder: Path
    request: LoweringRequest
    out: Path


class PrelowerCheckRequest(Record):
    """Request to check a pre-lowered graph.

    Attributes:
        onnx: the graph; its own interface is what it promises.
        folder: holds its files.
        data: samples; only those that somebody gave tell whether scales fit, random values do not.
        data_folder: holds theirs.
        engine: what will run it.
        accepted: findings, by their id, that are no reason to refuse it.
    """

    onnx: OnnxModel
    folder: Path
    data: DataSet | None
    data_folder: Path
    engine: EngineKind
    accepted: tuple[str, ...]


class LintPlanRequest(Record):
    """Request to lint a graph before its plan build.

    Attributes:
        lowered: the graph, in whatever precision.
        folder: holds its files.
        profiles: those that the plan is to have.
        tensorrt: the version of the target.
        plugins: whether the build brings libraries of plugins.
        accepted: findings, by their id, that are no reason to refuse it.
        built: whether TensorRT-RTX has built it.
    """

    lowered: LoweredModel
    folder: Path
    profiles: tuple[OptimizationProfile, ...]
    tensorrt: str
    plugins: bool = False
    accepted: tuple[str, ...] = ()
    built: bool = False


class LintWarnings(Record):
    """Lint warnings about a graph that are no reason to refuse it, one per line."""

    warnings: tuple[str, ...]
