"""Records of runs, without a run."""

from __future__ import annotations

from plansmith.records.model import EngineKind, Precision
from plansmith.steps.provenance.history import Failure, RunRecord


def run_record(model: str, *, started: str = "2026-11-20T13:05:00.000+00:00", failed: bool = False) -> RunRecord:
    """A run that published version 1, or failed at the gate."""
    failure = Failure(step="validate", error="GateError", message="logits differ\nmuch", exit_code=5)
    return RunRecord(
        plansmith="0",
        started=started,
        seconds=1.5,
        model=model,
        source=f"hf:./{model}",
        revision=None,
        source_digest=None,
        target="local-cpu",
        engine=EngineKind.ONNXRUNTIME,
        precision=Precision.FP32,
        repository="/repository",
        outcome="failed" if failed else "published",
        version=None if failed else 1,
        failure=failure if failed else None,
        verdict="failed" if failed else "passed",
        largest_error=2e-5,
        log=None,
        steps=(),
    )
