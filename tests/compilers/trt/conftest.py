"""GPUs that a lock or a build can be asked for, of a driver's library made for these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...support.tensorrt.nvml import nvml_stub

__all__ = ["nvml_stub"]


@pytest.fixture
def gpu_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the locks of GPUs lie for this test and the processes that it starts."""
    folder = tmp_path / "gpu-locks"
    monkeypatch.setenv("PLANSMITH_GPU_LOCKS", str(folder))
    return folder
