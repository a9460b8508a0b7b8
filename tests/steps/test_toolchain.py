"""What a step's result depends on: the builds of ONNX Runtime that are installed, and no library that has no say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.steps.cache import toolchain
from plansmith.steps.cache.toolchain import step_toolchain

from ..support.source import PACKAGE, reached_files

ASKED = (
    "import sys; sys.path[:0] = sys.argv[1:];"
    "from plansmith.steps.cache.toolchain import step_toolchain as t; print(t('{}'))"
)


@pytest.mark.parametrize("build", ["onnxruntime-gpu", "onnxruntime-openvino"])
def test_runtime_upgrade_changes_key(build: str, tmp_path: Path) -> None:
    """An upgrade of another build of ONNX Runtime changes the key."""
    package = Path(__file__).parents[2] / "src"
    outputs = []
    for version in ("1.20.0", "1.21.0"):
        folder = tmp_path / version / f"{build.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {build}\nVersion: {version}\n")
        command = [sys.executable, "-I", "-S", "-c", ASKED.format("compile"), str(folder.parent), str(package)]
        outputs.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert "'onnxruntime': '1.20.0'" in outputs[0]
    assert "'onnxruntime': '1.21.0'" in outputs[1]


def test_unrelated_library_keeps_onnx_file() -> None:
    """An ONNX file is taken anew for no library that has no part in it."""
    assert set(step_toolchain("import_onnx")) == {"onnx", "onnxruntime", "numpy", "code"}
    assert {"torch", "transformers", "timm"} < set(step_toolchain("export"))
    assert all(step_toolchain("import_onnx").values())


WORK = {
    "export": ("compilers.export.export",),
    "run_reference": ("compilers.export.export",),
    "import_onnx": ("steps.worker.import_onnx",),
    "sample": ("steps.worker.sampling",),
    "lower": ("compilers.precision.lowering",),
    "plan_lint": ("compilers.trt.lint",),
    "compile": ("compilers.onnxrt",),
    "compile_python": ("compilers.python_backend.model_folder",),
    "validate": ("validation.gate", "validation.plan_gate"),
    "validate_python": ("validation.gate", "compilers.python_backend.candidate"),
    "measure": ("compilers.trt.evaluation.latency",),
    "join": ("pipelines.build",),
    "script": ("pipelines.build",),
    "package": ("steps.release.package",),
    "check_served": ("steps.release.check_served",),
    "check_served_python": (
        "steps.release.check_served",
        "compilers.python_backend.generator_model",
        "compilers.python_backend.model",
    ),
    "environment": ("steps.release.environment",),
    "zoo": ("fleet.zoo.child",),
}
"""The modules that do the work of a step."""

# Words, the disk, the spec's form (its values are in the key), and what only refuses or carries a step out.
NO_SAY = {
    "records/release",
    "system/urls",
    "errors",
    "config/messages",
    "formatting",
    "records/fields",
    "config/target_names",
    "config/targets",
    "config/yaml_loading",
    "config/yaml_source",
    "system/files",
    "system/garbage",
    "system/isolation",
    "system/libraries",
    "config/spec",
    "records/destination",
    "config/pipeline",
    "steps/artifacts",
    "config/triton",
    "report/text",
    "validation/coverage",
}
NO_SAY_IN = {
    "export": {"compilers/precision", "config/engine_options"},
    "run_reference": {"compilers/precision", "config/engine_options"},
    "import_onnx": {"compilers/precision", "config/engine_options"},
    "sample": {"config/engine_options"},
    "plan_lint": {"config/engine_options"},  # a request of another task is made of it
    "join": {"config/engine_options", "system/process"},
    "script": {"config/engine_options", "system/process"},
}
_ABOUT_STEPS = {
    "steps/runner",
    "steps/cache/local",
    "system/fork_server",
    "system/process",
    "system/memory",
    "steps/cache/toolchain",
    "config/data",
    "config/engine_options",
    "config/shapes",
}
NO_SAY_IN["zoo"] = NO_SAY_IN["export"] | {"system/process"}
NO_SAY_IN |= {"compile_python": _ABOUT_STEPS, "validate_python": {"config/engine_options"}}
NO_SAY_IN |= {step: {"data", "config/data"} for step in ("lower", "validate")}  # these know names of outputs
NO_SAY_IN["lower"] |= {"config/shapes"}  # of profiles
NO_SAY_IN["validate"] |= {"system/memory"}  # refuses data that do not fit
NO_SAY_IN["plan_lint"] |= {"config/shapes"}
NO_SAY_IN["measure"] = {"config/engine_options"}
NO_SAY_IN |= {
    "environment": {*_ABOUT_STEPS, "compilers/python_backend", "pipelines", "triton"},  # which models need one
    "package": {*_ABOUT_STEPS, "compilers/python_backend"},
    "check_served": {*_ABOUT_STEPS, "system/memory"},
    "check_served_python": _ABOUT_STEPS,
}


def _deciding() -> dict[str, list[str]]:
    """The modules that decide what a step makes, with the steps: all that these reach and that has a say."""
    by_place: dict[str, list[str]] = {}
    for step, modules in WORK.items():
        silent = NO_SAY | NO_SAY_IN.get(step, set())
        for path in reached_files(*(f"plansmith.{module}" for module in modules)):
            place = path.relative_to(PACKAGE)
            around = {place.with_suffix("").as_posix(), *(parent.as_posix() for parent in place.parents)}
            if path.name != "__init__.py" and around.isdisjoint(silent):  # these hold a line of words
                by_place.setdefault(place.as_posix(), []).append(step)
    return dict(sorted(by_place.items()))


DECIDING = _deciding()


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, to be edited."""
    package = tmp_path_factory.mktemp("copied") / "plansmith"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


@pytest.mark.parametrize("module", DECIDING)
def test_module_edit_changes_step_keys(module: str, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of a module changes the keys of the steps that run it."""
    monkeypatch.setattr(toolchain, "_PACKAGE", copied)
    monkeypatch.setattr(toolchain, "_place_digest", toolchain._place_digest.__wrapped__)
    before = {step: step_toolchain(step)["code"] for step in DECIDING[module]}
    text = (copied / module).read_bytes()
    (copied / module).write_bytes(text + b"# edited")
    after = {step: step_toolchain(step)["code"] for step in DECIDING[module]}
    (copied / module).write_bytes(text)
    assert not [step for step in before if before[step] == after[step]]


def test_deciding_names_exist() -> None:
    """What is named as deciding is there."""
    named = {*toolchain._COMMON_CODE, *(place for places in toolchain._CODE.values() for place in places)}
    assert not [place for place in named if not (PACKAGE / place).exists()]
