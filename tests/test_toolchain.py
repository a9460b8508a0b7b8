"""What a step's result depends on: the builds of ONNX Runtime that are installed, and no library that has no say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plansmith import toolchain
from plansmith.toolchain import environment, step_toolchain

from .import_rules import PACKAGE, reached_files

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


WORK = {
    "export": ("exporting",),
    "ask_model": ("exporting",),
    "take_graph": ("graph_taking",),
    "sample": ("sampling",),
    "lower": ("lowering", "given_graphs"),
    "plan_lint": ("compilers.plan_lint",),
    "compile": ("compilers.onnxrt",),
    "compile_python": ("compilers.python_backend.served_folder",),
    "validate": ("validation", "held_out", "plan_validation"),
    "validate_python": ("validation", "held_out", "python_gate"),
    "measure": ("plan_speeds",),
    "join": ("joining",),
    "script": ("scripting",),
    "package": ("packaging",),
    "check_served": ("serving",),
    "check_served_python": ("serving", "python_generation", "python_model"),
    "environment": ("environments.packing",),
    "zoo": ("zoo.child",),
}
"""The modules that do the work of a step."""

# Words, the disk, the spec's form (its values are in the key), and what only refuses or carries a step out.
NO_SAY = {
    "basis",
    "addresses",
    "errors",
    "problems",
    "units",
    "written",
    "target_names",
    "targets",
    "durable",
    "scratch",
    "config",
    "destinations",
    "pipeline_options",
    "pipeline_spec",
    "made",
    "python_options",
    "tensorrt_options",
    "triton_options",
    "plan_words",
    "precision_words",
}
NO_SAY_IN = {
    "export": {"compilers/precision", "lowering_options"},
    "ask_model": {"compilers/precision", "lowering_options"},
    "take_graph": {"compilers/precision", "lowering_options"},
    "sample": {"lowering_options"},
    "join": {"lowering_options", "process", "process_groups"},
    "script": {"lowering_options", "process", "process_groups"},
}
_ABOUT_STEPS = {
    "stages",
    "stage_cache",
    "process",
    "process_groups",
    "memory",
    "toolchain",
    "data_spec",
    "lowering_options",
    "shapes",
}
NO_SAY_IN["zoo"] = NO_SAY_IN["export"] | {"process", "process_groups"}
NO_SAY_IN |= {"compile_python": _ABOUT_STEPS, "validate_python": {"lowering_options"}}
NO_SAY_IN |= {
    "environment": _ABOUT_STEPS,
    "package": _ABOUT_STEPS,
    "check_served": {*_ABOUT_STEPS, "limits"},
    "check_served_python": _ABOUT_STEPS,
}


@pytest.mark.parametrize("step", WORK)
def test_every_module_that_a_step_reaches_is_part_of_its_key_unless_it_has_no_say(step: str) -> None:
    counted = (*toolchain._COMMON_CODE, *toolchain._CODE[step])
    silent = NO_SAY | NO_SAY_IN.get(step, set())
    missing = []
    for path in reached_files(*(f"plansmith.{module}" for module in WORK[step])):
        if path.name == "__init__.py":  # a line of words
            continue
        place = path.relative_to(PACKAGE)
        around = {place.as_posix(), *(parent.as_posix() for parent in place.parents)}
        if around.isdisjoint(counted) and (around | {place.with_suffix("").as_posix()}).isdisjoint(silent):
            missing.append(place.as_posix())
    assert not missing


def test_what_is_named_as_deciding_is_there() -> None:
    named = {*toolchain._COMMON_CODE, *(place for places in toolchain._CODE.values() for place in places)}
    assert not [place for place in named if not (PACKAGE / place).exists()]


def test_another_environment_is_known_by_its_distributions_and_its_python(tmp_path: Path) -> None:
    found = environment(sys.executable)
    assert found["python"] == sys.version
    assert found["pytest"] == pytest.__version__
    assert environment(str(tmp_path / "python")) == {}
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    assert environment(str(silent)) == {}
