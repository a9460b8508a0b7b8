"""Starting is instant, and every module imports only what lies below it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .import_rules import HEAVY, LEVELS, PACKAGE, source_files, violations

MODULES = dict(source_files())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_design_lets_it(module: str) -> None:
    assert violations(module, MODULES[module].read_text()) == []


def test_every_module_is_read_and_every_level_is_real() -> None:
    assert {"plansmith", "plansmith.compilers.onnxrt", "plansmith.triton.server", "plansmith.cli.compile"} <= set(
        MODULES
    )
    units = {unit for level in LEVELS for unit in level} - {"plansmith"}
    assert {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()} == {
        *units,
        "__init__",
    }


ALLOWED = """
import numpy
from plansmith import __version__, data
from plansmith.sources import live
if TYPE_CHECKING:
    import torch
def f():
    import timm
"""

PLANTED = {
    "sideways between packages": (
        "plansmith.sources.hub",
        "from plansmith.triton import server",
        ["plansmith.sources.hub:1 imports plansmith.triton: sideways"],
    ),
    "sideways between modules": (
        "plansmith.digest",
        "from plansmith.durable import locked",
        ["plansmith.digest:1 imports plansmith.durable: sideways"],
    ),
    "back": ("plansmith.types", "import plansmith.steps", ["plansmith.types:1 imports plansmith.steps: back"]),
    "back, by the package's name": (
        "plansmith.triton.server",
        "from plansmith import errors, stages",
        ["plansmith.triton.server:1 imports plansmith.stages: back"],
    ),
    "back, inside a function": (
        "plansmith.validation",
        "def f():\n    from plansmith.cli import main",
        ["plansmith.validation:2 imports plansmith.cli: back"],
    ),
    "back, for types only": (
        "plansmith.config",
        "if TYPE_CHECKING:\n    from plansmith.sources.live import LiveModel",
        ["plansmith.config:2 imports plansmith.sources.live: back"],
    ),
    "a heavy library at module level": (
        "plansmith.compilers.onnxrt",
        "import numpy, onnx.helper",
        ["plansmith.compilers.onnxrt:1 imports onnx.helper outside of a function"],
    ),
    "a heavy library in a class": (
        "plansmith.triton.server",
        "class A:\n    from tritonclient import grpc",
        ["plansmith.triton.server:2 imports tritonclient outside of a function"],
    ),
    "PyTorch in the wrong place": (
        "plansmith.steps",
        "def f():\n    from torch.nn import Module",
        ["plansmith.steps:2 imports torch.nn: not the place for it"],
    ),
    "Prefect": (
        "plansmith.worker",
        "def f():\n    import prefect",
        ["plansmith.worker:2 imports prefect: not the place for it"],
    ),
    "TensorRT beside its place": (
        "plansmith.compilers.plan_layers",
        "def f():\n    import tensorrt",
        ["plansmith.compilers.plan_layers:2 imports tensorrt: not the place for it"],
    ),
    "TensorRT by its name in a text": (
        "plansmith.plan_steps",
        "def f():\n    return importlib.import_module('tensorrt')",
        ["plansmith.plan_steps:2 imports tensorrt: not the place for it"],
    ),
    "TensorRT by way of Polygraphy": (
        "plansmith.plan_validation",
        "def f():\n    from polygraphy.backend.trt import TrtRunner",
        ["plansmith.plan_validation:2 imports polygraphy.backend.trt: not the place for it"],
    ),
    "TensorRT at module level": (
        "plansmith.compilers.trt.building",
        "import tensorrt",
        ["plansmith.compilers.trt.building:1 imports tensorrt outside of a function"],
    ),
    "TensorRT in its place": (
        "plansmith.compilers.trt.building",
        "def f():\n    import tensorrt\n    from polygraphy.backend.trt import Profile",
        [],
    ),
    "a module that nobody placed": ("plansmith.helpers", "", ["plansmith.helpers has no place among the levels"]),
    "nothing wrong": (
        "plansmith.sources.timm_models",
        ALLOWED,
        [],
    ),
}


@pytest.mark.parametrize(("module", "source", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_import_is_found(module: str, source: str, expected: list[str]) -> None:
    assert violations(module, source) == expected


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",), ("compile", "--help")], ids=" ".join)
def test_starting_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    start = ["-m", "plansmith", *arguments] if arguments else ["-c", "import plansmith"]
    done = subprocess.run(
        [sys.executable, *start],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "plansmith" in imported
    assert not (HEAVY | {"numpy"}) & {name.partition(".")[0] for name in imported}
    assert not arguments or "pydantic" not in imported
