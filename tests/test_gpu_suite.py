"""The tests that need a GPU are all marked, skipped where there is none, and fail where one is required."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.triton.server.installation import has_gpu

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "gpu"

_MARKED = """
import json, sys, pytest
class Collected:
    def pytest_collection_finish(self, session):
        marks = [{mark.name for mark in item.iter_markers()} & {"gpu", "tensorrt"} for item in session.items]
        self.marked = json.dumps([sorted(names) for names in marks])
collected = Collected()
pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", sys.argv[1]], plugins=[collected])
print(collected.marked)
"""


def run(*, required: str) -> subprocess.CompletedProcess[str]:
    """Two modules, one of each marker."""
    environment = {**os.environ, "PLANSMITH_REQUIRE_GPU": required}
    environment.pop("CI", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [str(FOLDER / "test_lock.py"), str(FOLDER / "test_variants.py")]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def count(output: str, label: str) -> int:
    match = re.search(rf"(\d+) {label}", output.splitlines()[-1])
    return int(match[1]) if match else 0


@pytest.mark.slow
def test_tests_have_one_marker() -> None:
    """Every test has one of the two markers."""
    done = subprocess.run([sys.executable, "-c", _MARKED, str(FOLDER)], cwd=ROOT, capture_output=True, check=True)
    marked: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    assert marked.count(["gpu"]) > 5
    assert marked.count(["tensorrt"]) > 20
    assert marked.count(["gpu"]) + marked.count(["tensorrt"]) == len(marked)


@pytest.mark.slow
@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_gpuless_tests_skipped_unless_required() -> None:
    """Without a GPU, GPU tests are skipped, unless one is required."""
    left_out, failed = run(required="0"), run(required="1")
    everything = count(left_out.stdout, "skipped")
    assert left_out.returncode == 0
    assert everything > 10
    assert failed.returncode == 1
    assert count(failed.stdout, "errors?") == everything
    assert failed.stdout.count("there is no NVIDIA GPU here, and PLANSMITH_REQUIRE_GPU=1 requires it") >= everything


def test_make_test_gpu_requires_one() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile[makefile.index("\ntest-gpu: ") : makefile.index("\ncheck:  ")]
    assert 'PLANSMITH_REQUIRE_GPU=1 $(BIN)/python -m pytest -m "gpu or tensorrt" tests/gpu' in recipe
