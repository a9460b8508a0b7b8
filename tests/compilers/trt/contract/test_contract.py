"""Our code against the real bindings of four versions of TensorRT: from the package index, each in its own process."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from plansmith.compilers.trt import api

from ....support.tensorrt.bindings import WHEELS, in_child

HERE = Path(__file__).parent
*_, NEWEST = WHEELS
CONTRACTS = sorted(HERE.glob("contract_*.py"))


@pytest.mark.services
@pytest.mark.parametrize("version", WHEELS)
def test_code_keeps_to_bindings(version: str) -> None:
    """Our code keeps to the bindings of the given version."""
    plugins = ["stubbed", "complete"] if version == NEWEST else ["stubbed"]
    options = [
        *(f"-ptests.support.tensorrt.{plugin}" for plugin in plugins),
        "--noconftest",
        "-pno:cacheprovider",
        "-q",
    ]
    options += ["-ppytest_timeout"]  # whose options pyproject.toml has
    done = in_child(version, "-m", "pytest", *options, *map(str, CONTRACTS))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.services
def test_removed_features_unused() -> None:
    """Nothing that TensorRT 11 removed is used."""
    before, after = (
        set(json.loads(in_child(v, "-m", "tests.support.tensorrt.bindings").stdout)) for v in ("10.16", "11.4")
    )
    removed = before - after
    assert {"EXPLICIT_BATCH", "OBEY_PRECISION_CONSTRAINTS", "device_memory_size", "platform_has_fast_fp16"} <= removed
    for path in Path(api.__path__[0]).glob("*.py"):
        assert not removed & names_in(path.read_text()), path.name


def names_in(source: str) -> set[str]:
    """Attributes, and texts that could be turned into one."""
    tree = list(ast.walk(ast.parse(source)))
    attributes = {node.attr for node in tree if isinstance(node, ast.Attribute)}
    return attributes | {n.value for n in tree if isinstance(n, ast.Constant) and isinstance(n.value, str)}
