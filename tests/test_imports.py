"""Starting is instant, and every module imports only what lies below it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .import_rules import HEAVY, PACKAGE, RANKS, first_circle, folder_arrows, module_arrows, source_files, violations

MODULES = dict(source_files())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_design_lets_it(module: str) -> None:
    assert violations(module, MODULES[module].read_text()) == []


def test_every_module_is_read_and_every_rank_is_real() -> None:
    assert {
        "plansmith",
        "plansmith.compilers.onnxrt",
        "plansmith.triton.server.server",
        "plansmith.cli.compile.compile",
    } <= set(MODULES)
    units = {unit for rank in RANKS for unit in rank} - {"plansmith"}
    assert {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()} == {
        *units,
        "__init__",
    }


@pytest.mark.slow
def test_no_module_and_no_folder_leads_back_to_itself() -> None:
    modules = module_arrows()
    assert first_circle(modules) == []
    assert first_circle(folder_arrows(modules)) == []


def test_a_circle_of_modules_and_one_of_folders_are_found() -> None:
    circle = {"plansmith.data.table": {"plansmith.data.text"}, "plansmith.data.text": {"plansmith.data.table"}}
    assert first_circle(circle)[0] == first_circle(circle)[-1]
    modules = {
        "plansmith.stores.sync.pull": {"plansmith.stores.backend.s3.copy", "plansmith.stores.open"},
        "plansmith.stores.backend.leases": {"plansmith.stores.sync.mirror"},
    }
    assert first_circle(modules) == []
    folders = folder_arrows(modules)
    assert folders["plansmith.stores.sync"] == {"plansmith.stores.backend"}
    assert set(first_circle(folders)) == {"plansmith.stores.sync", "plansmith.stores.backend"}


ALLOWED = """
import numpy
from plansmith import __version__, data
from plansmith.sources import loaded_model
if TYPE_CHECKING:
    import torch
def f():
    import timm
"""

PLANTED = {
    "sideways between packages": (
        "plansmith.sources.hub",
        "from plansmith.validation import gate",
        ["plansmith.sources.hub:1 imports plansmith.validation: sideways"],
    ),
    "sideways between modules": (
        "plansmith.errors",
        "from plansmith.testing import Call",
        ["plansmith.errors:1 imports plansmith.testing: sideways"],
    ),
    "back": (
        "plansmith.records.model",
        "import plansmith.steps.runner",
        ["plansmith.records.model:1 imports plansmith.steps.runner: back"],
    ),
    "back, by the package's name": (
        "plansmith.triton.server.server",
        "from plansmith import errors, steps",
        ["plansmith.triton.server.server:1 imports plansmith.steps: back"],
    ),
    "back, inside a function": (
        "plansmith.validation.gate",
        "def f():\n    from plansmith.cli import main",
        ["plansmith.validation.gate:2 imports plansmith.cli: back"],
    ),
    "back, for types only": (
        "plansmith.config.spec",
        "if TYPE_CHECKING:\n    from plansmith.sources.loaded_model import LiveModel",
        ["plansmith.config.spec:2 imports plansmith.sources.loaded_model: back"],
    ),
    "a heavy library at module level": (
        "plansmith.compilers.onnxrt",
        "import numpy, onnx.helper",
        ["plansmith.compilers.onnxrt:1 imports onnx.helper outside of a function"],
    ),
    "a heavy library in a class": (
        "plansmith.triton.server.server",
        "class A:\n    from tritonclient import grpc",
        ["plansmith.triton.server.server:2 imports tritonclient outside of a function"],
    ),
    "PyTorch in the wrong place": (
        "plansmith.steps.compilation",
        "def f():\n    from torch.nn import Module",
        ["plansmith.steps.compilation:2 imports torch.nn: not the place for it"],
    ),
    "Prefect": (
        "plansmith.steps.worker",
        "def f():\n    import prefect",
        ["plansmith.steps.worker:2 imports prefect: not the place for it"],
    ),
    "TensorRT beside its place": (
        "plansmith.compilers.trt.build",
        "def f():\n    import tensorrt",
        ["plansmith.compilers.trt.build:2 imports tensorrt: not the place for it"],
    ),
    "TensorRT by its name in a text": (
        "plansmith.steps.tensorrt.compile",
        "def f():\n    return importlib.import_module('tensorrt')",
        ["plansmith.steps.tensorrt.compile:2 imports tensorrt: not the place for it"],
    ),
    "TensorRT by way of Polygraphy": (
        "plansmith.validation.plan_gate",
        "def f():\n    from polygraphy.backend.trt import TrtRunner",
        ["plansmith.validation.plan_gate:2 imports polygraphy.backend.trt: not the place for it"],
    ),
    "TensorRT at module level": (
        "plansmith.compilers.trt.api.building",
        "import tensorrt",
        ["plansmith.compilers.trt.api.building:1 imports tensorrt outside of a function"],
    ),
    "TensorRT in its place": (
        "plansmith.compilers.trt.api.building",
        "def f():\n    import tensorrt\n    from polygraphy.backend.trt import Profile",
        [],
    ),
    "a module that nobody placed": ("plansmith.helpers", "", ["plansmith.helpers has no place among the ranks"]),
    "nothing wrong": (
        "plansmith.sources.timm",
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
