"""What a step's result depends on besides its inputs: the tools' versions and our own code."""

from __future__ import annotations

import hashlib
import json
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGE = Path(__file__).parent

# One library under several names, of which one is installed.
_ONNXRUNTIME = "onnxruntime"
_BUILDS = ("", "-gpu", "-openvino", "-directml", "-migraphx", "-rocm", "-qnn", "-training")

# Our modules and the distributions that decide the result of a step, or of a part that has its own: `graph_files`
# finds what an ONNX file consists of, `take_graph` is the export of one. Records and numbers count everywhere.
_COMMON_CODE = (
    "types.py",
    "engines.py",
    "reports.py",
    "manifest.py",
    "parts.py",
    "packed.py",
    "comparison.py",
    "reference.py",
    "worker.py",
    "digest.py",
)
_GRAPH_CODE = ("compilers/onnxrt.py", "compilers/onnx_files.py", "external_data.py")
_EXPORT_CODE = (
    "exporting.py",
    "graph_taking.py",
    "asking.py",
    "isolation.py",
    "loading.py",
    "room.py",
    "limits.py",
    "units.py",
    "sources",
    "samples",
    "data",
    "data_spec.py",
    "output_names.py",
    "shapes.py",
    "memory.py",
    "repeating.py",
    "compilers/torch_export.py",
    "compilers/exporters.py",
    "compilers/alike.py",
    "compilers/attempts.py",
    "compilers/rounding.py",
    "compilers/deadline.py",
    "compilers/rewrites",
    "compilers/onnx_import.py",
    *_GRAPH_CODE,
)
_PYTHON_CODE = (
    "compilers/python_backend",
    "pipeline/generation.py",
    "python_generation.py",
    "python_model.py",
    "python_options.py",
    "triton/standin/batching.py",
)
_JUDGING_CODE = (
    "validation.py",
    "graph_answers.py",
    "held_out.py",
    "judging.py",
    "measuring.py",
    "agreement.py",
    "task_metrics.py",
    "roles.py",
    "output_names.py",
    "intervals.py",
)
_JOINED_CODE = (
    "joined_model.py",
    "python_gate.py",
    "pipeline",
    "compilers/dali",
    *_PYTHON_CODE,
    *_EXPORT_CODE,
    *_JUDGING_CODE,
)
_CODE = {
    "fetch": ("sources", "external_data.py"),
    "graph_files": ("sources/onnx_models.py", "external_data.py"),
    "registered": ("sources/mlflow_models", "sources/directory.py"),
    "export": _EXPORT_CODE,
    "ask_model": _EXPORT_CODE,
    "take_graph": _EXPORT_CODE,
    "sample": (*_EXPORT_CODE, "sampling.py", "sample_sets.py"),
    "lower": (
        "lowering.py",
        "given_graphs.py",
        "lowered_graph.py",
        "lowering_options.py",
        "trials.py",
        "process.py",
        "process_groups.py",
        "processor.py",
        "memory.py",
        "compilers/precision",
        *_GRAPH_CODE,
        *_JUDGING_CODE,
    ),
    "plan_lint": (
        "compilers/plan_lint.py",
        "compilers/plan_lint_shapes.py",
        "compilers/shape_inputs.py",
        "compilers/precision",
        *_GRAPH_CODE,
    ),
    "plan_graph": (*_GRAPH_CODE, "compilers/shape_inputs.py", "compilers/plan_layers.py", "compilers/precision"),
    # A machine without TensorRT finds the plan that another one built: its version stands beside this in the key.
    "plan": (
        "compilers/trt",
        "compilers/trtexec",
        "compilers/plan_building.py",
        "compilers/plan_worker.py",
        "compilers/plan_layers.py",
        "compilers/plan_reproduction.py",
        "compilers/layer_summary.py",
        "plan_header.py",
        "plan_steps.py",
        "plan_words.py",
        "optimization_profiles.py",
    ),
    "compile": _GRAPH_CODE,
    "compile_python": (*_PYTHON_CODE, "sources/generating.py", "sources/hf_tasks.py"),
    "validate": (*_GRAPH_CODE, *_JUDGING_CODE, "plan_validation.py", "profile_inputs.py"),
    "validate_python": ("python_gate.py", *_PYTHON_CODE, *_EXPORT_CODE, *_JUDGING_CODE),
    "measure": (
        "plan_gate.py",
        "plan_judging.py",
        "plan_words.py",
        "compilers/trt",
        "compilers/layer_summary.py",
        "plan_speeds.py",
        "plan_validation.py",
        "profile_inputs.py",
        "compilers/baselines.py",
        "compilers/torch_baselines.py",
        "compilers/precision/speed.py",
        *_EXPORT_CODE,
        *_JUDGING_CODE,
    ),
    "join": ("joining.py", *_JOINED_CODE),
    "script": ("scripting.py", *_JOINED_CODE),
    "package": (
        "packaging.py",
        "client/wire.py",
        "environments",
        "external_data.py",
        "pipeline/generation.py",
        "pipeline/model_files.py",
        "pipeline/served",
        "plan_header.py",
        "profile_inputs.py",
        "tensorrt_versions.py",
        "triton",
        "triton_options",
    ),
    "check_served": ("serving.py", "profile_inputs.py", "client", "triton", "pipeline"),
    "check_served_python": (
        "serving.py",
        "profile_inputs.py",
        "client",
        "triton",
        "pipeline",
        *_PYTHON_CODE,
        *_EXPORT_CODE,
    ),
    "environment": ("environments",),
    "zoo": ("zoo", *_EXPORT_CODE),
}
_EXPORT_TOOLS = (
    "torch",
    "transformers",
    "tokenizers",
    "timm",
    "torchvision",
    "onnx",
    "onnxscript",
    _ONNXRUNTIME,
    "numpy",
)
_PYTORCH_TOOLS = ("torch", "transformers", "tokenizers", "timm", "torchvision", "safetensors", "numpy")
_TOOLS = {
    "fetch": ("torch", "transformers", "timm"),
    "graph_files": ("onnx", "protobuf"),
    "registered": (),
    "take_graph": ("onnx", _ONNXRUNTIME, "numpy"),
    "export": _EXPORT_TOOLS,
    "ask_model": _PYTORCH_TOOLS,
    "sample": (*_EXPORT_TOOLS, "pillow", "pyarrow"),
    "lower": (_ONNXRUNTIME, "onnx", "polygraphy", "numpy"),
    "plan_lint": ("onnx", "numpy"),
    "plan_graph": (_ONNXRUNTIME, "onnx"),
    "plan": (),
    "compile": (_ONNXRUNTIME, "onnx"),
    "compile_python": ("plansmith", "sentencepiece", "pillow", *_PYTORCH_TOOLS),
    "validate": (_ONNXRUNTIME, "polygraphy", "numpy"),
    "validate_python": _PYTORCH_TOOLS,
    "measure": (*_EXPORT_TOOLS, "polygraphy"),
    "join": ("pillow", _ONNXRUNTIME, *_PYTORCH_TOOLS),
    "script": ("pillow", _ONNXRUNTIME, *_PYTORCH_TOOLS),
    "package": ("tritonclient", "protobuf"),
    "check_served": ("tritonclient", "numpy"),
    "check_served_python": ("tritonclient", *_PYTORCH_TOOLS),
    "environment": ("packaging",),
    "zoo": _EXPORT_TOOLS,
}

_SECONDS_TO_ANSWER = 60
_ASK_ENVIRONMENT = """
import json, sys
from importlib.metadata import distributions
found = {d.metadata["Name"]: d.version for d in distributions()}
print(json.dumps({**found, "python": sys.version}))
"""


def step_toolchain(step: str) -> dict[str, str]:
    """The versions of the tools of a step (or part), empty where one is not installed, and a digest of its code."""
    versions = {name: _version(name) for name in _TOOLS[step]}
    return versions | {"code": _code_digest((*_COMMON_CODE, *_CODE[step]))}


def environment(interpreter: str) -> dict[str, str]:
    """Every distribution of another Python, and its own version; empty where it cannot be asked.

    Whoever starts it for its work says what is wrong with it.
    """
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(
            [interpreter, "-I", "-c", _ASK_ENVIRONMENT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_ANSWER,
            check=True,
        )
        found = json.loads(done.stdout)
        return {str(name): str(number) for name, number in found.items()}
    return {}


@cache
def _version(distribution: str) -> str:
    for build in _BUILDS if distribution == _ONNXRUNTIME else ("",):
        with suppress(PackageNotFoundError):
            return version(distribution + build)
    return ""


@cache
def _code_digest(places: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for place in places:
        path = _PACKAGE / place
        files = sorted(p for p in path.rglob("*") if p.suffix in {".py", ".txt"}) if path.is_dir() else [path]
        for file in files:
            digest.update(file.relative_to(_PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
