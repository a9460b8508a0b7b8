"""What target files say about an ONNX Runtime is what that ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.config.targets import load_target, require_onnxruntime
from plansmith.triton.server import environment

from ..onnxruntime_limits import onnxruntime_limits


def test_default_target_states_runtime_reads(site: Path) -> None:
    """The default target states what its ONNX Runtime reads."""
    runtime = require_onnxruntime(load_target("local-cpu"))
    assert site.name == f"onnxruntime-{runtime.version}"
    assert onnxruntime_limits(site) == (runtime.max_opset, runtime.max_ir_version)


@pytest.mark.services
def test_other_target_runtime_installed_and_reads(tmp_path: Path) -> None:
    """The ONNX Runtime of another target is installed and reads what the target states."""
    runtime = require_onnxruntime(load_target("triton-26.08"))
    folder = environment.install_runtime(runtime.version, lambda _: None, private=tmp_path)
    assert onnxruntime_limits(folder) == (runtime.max_opset, runtime.max_ir_version)
    assert [part.onnxruntime for part in environment.installed_parts(private=tmp_path)] == [runtime.version]
