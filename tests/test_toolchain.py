"""What a step's result depends on: the builds of ONNX Runtime that are installed, and no library that has no say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.toolchain import step_toolchain

ASKED = "import sys; sys.path[:0] = sys.argv[1:]; from plansmith.toolchain import step_toolchain as t; print(t('{}'))"


@pytest.mark.parametrize("build", ["onnxruntime-gpu", "onnxruntime-openvino"])
def test_an_upgrade_of_another_build_of_onnx_runtime_changes_the_key(build: str, tmp_path: Path) -> None:
    package = Path(__file__).parents[1] / "src"
    said = []
    for version in ("1.20.0", "1.21.0"):
        folder = tmp_path / version / f"{build.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {build}\nVersion: {version}\n")
        command = [sys.executable, "-I", "-S", "-c", ASKED.format("compile"), str(folder.parent), str(package)]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert "'onnxruntime': '1.20.0'" in said[0]
    assert "'onnxruntime': '1.21.0'" in said[1]


def test_an_onnx_file_is_taken_anew_for_no_library_that_has_no_part_in_it() -> None:
    assert set(step_toolchain("take_graph")) == {"onnx", "onnxruntime", "numpy", "code"}
    assert {"torch", "transformers", "timm"} < set(step_toolchain("export"))
    assert all(step_toolchain("take_graph").values())
