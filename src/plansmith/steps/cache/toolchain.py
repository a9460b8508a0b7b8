"""What a step's result depends on besides its inputs: the tools' versions and our own code."""

from __future__ import annotations

import hashlib
import json
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]

# One library under several names, of which one is installed.
_ONNXRUNTIME = "onnxruntime"
_BUILDS = ("", "-gpu", "-openvino", "-directml", "-migraphx", "-rocm", "-qnn", "-training")

# Our modules and the distributions that decide the result of a step, or of a part that has its own: `graph_files`
# finds what an ONNX file consists of, `import_onnx` is the export of one. Records and numbers count everywhere.
_COMMON_CODE = (
    "data/reference.py",
    "records/engine.py",
    "records/environment.py",
    "records/model.py",
    "records/pipeline.py",
    "records/release.py",
    "records/validation.py",
    "steps/worker/__main__.py",
    "steps/worker/tasks.py",
    "system/digest.py",
    "validation/comparison.py",
)
_GRAPH_CODE = (
    "compilers/onnx_files.py",
    "compilers/onnxrt.py",
    "sources/external_data.py",
)
_EXPORT_CODE = (
    "compilers/export",
    "compilers/precision/graph.py",
    "compilers/python_backend/generator_loading.py",
    "compilers/shape_inputs.py",
    "config/data.py",
    "config/mlflow_uri.py",
    "config/s3_uri.py",
    "config/shapes.py",
    "config/source_reference.py",
    "data",
    "formatting.py",
    "pipelines/answer_kinds.py",
    "pipelines/audio",
    "pipelines/detect.py",
    "pipelines/generation.py",
    "pipelines/image",
    "pipelines/plan.py",
    "pipelines/text",
    "samples/sentences.txt",
    "sources",
    "steps/worker/import_onnx.py",
    "system/memory.py",
    *_GRAPH_CODE,
)
_PYTHON_CODE = (
    "compilers/python_backend/batching.py",
    "compilers/python_backend/cast.py",
    "compilers/python_backend/device_tensors.py",
    "compilers/python_backend/generate.py",
    "compilers/python_backend/generation_parameters.py",
    "compilers/python_backend/generator_model.py",
    "compilers/python_backend/model.py",
    "compilers/python_backend/model_folder.py",
    "compilers/python_backend/run.py",
    "compilers/python_backend/streaming.py",
    "compilers/python_backend/threads.py",
    "compilers/python_backend/weights.py",
    "config/python.py",
)
_JUDGING_CODE = (
    "data/task.py",
    "validation/gate.py",
    "validation/held_out.py",
    "validation/metrics",
    "validation/onnxruntime_runner.py",
)
_JOINED_CODE = (
    "compilers/python_backend/candidate.py",
    "compilers/python_backend/generation_parameters.py",
    "pipelines/agreement.py",
    "pipelines/cases.py",
    "pipelines/dali",
    "pipelines/draft.py",
    "pipelines/in_process.py",
    "pipelines/labels.py",
    "pipelines/model_files.py",
    "pipelines/requests.py",
    "pipelines/served",
    *_PYTHON_CODE,
    *_EXPORT_CODE,
    *_JUDGING_CODE,
)
_CODE = {
    "fetch": (
        "compilers/python_backend/generator_loading.py",
        "config/mlflow_uri.py",
        "config/s3_uri.py",
        "config/source_reference.py",
        "pipelines/answer_kinds.py",
        "pipelines/audio",
        "pipelines/detect.py",
        "pipelines/generation.py",
        "pipelines/image",
        "pipelines/plan.py",
        "pipelines/text",
        "sources",
    ),
    "graph_files": (
        "sources/external_data.py",
        "sources/onnx_file.py",
    ),
    "registered": (
        "config/mlflow_uri.py",
        "sources/bucket_objects.py",
        "sources/directory.py",
        "sources/mlflow",
        "sources/remote_files.py",
        "system/aws",
    ),
    "in_bucket": (
        "config/s3_uri.py",
        "sources/bucket_objects.py",
        "sources/directory.py",
        "sources/mlflow",
        "sources/remote_files.py",
        "sources/s3",
        "system/aws",
    ),
    "export": _EXPORT_CODE,
    "run_reference": _EXPORT_CODE,
    "import_onnx": _EXPORT_CODE,
    "sample": (
        "steps/worker/sample_request.py",
        "steps/worker/sample_sets.py",
        "steps/worker/sampling.py",
        *_EXPORT_CODE,
    ),
    "lower": (
        "compilers/precision",
        "config/precision.py",
        "system/cpu.py",
        "system/memory.py",
        "system/process.py",
        *_GRAPH_CODE,
        *_JUDGING_CODE,
    ),
    "plan_lint": (
        "compilers/precision",
        "compilers/trt/check/library.py",
        "compilers/trt/lint.py",
        "compilers/trt/lint_shapes.py",
        "compilers/shape_inputs.py",
        *_GRAPH_CODE,
    ),
    "plan_check": (
        "compilers/trt/api",
        "compilers/trt/build_worker.py",
        "compilers/trt/check",
        "compilers/trt/failures.py",
        "compilers/trt/inspection",
        "steps/tensorrt/graph.py",
    ),
    "plan_graph": (
        "compilers/precision",
        "compilers/trt/inspection/layers.py",
        "compilers/shape_inputs.py",
        *_GRAPH_CODE,
    ),
    # A machine without TensorRT finds the plan that another one built: its version stands beside this in the key.
    "plan": (
        "compilers/trt/api",
        "compilers/trt/build.py",
        "compilers/trt/build_worker.py",
        "compilers/trt/inspection",
        "compilers/trt/profiles.py",
        "compilers/trt/reproduce.py",
        "compilers/trtexec",
        "report/text/plan.py",
        "steps/tensorrt/compile.py",
        "validation/coverage.py",
    ),
    "compile": _GRAPH_CODE,
    "compile_python": (
        "compilers/python_backend/generator_loading.py",
        "sources/huggingface/tasks.py",
        *_PYTHON_CODE,
    ),
    "validate": (
        "validation/plan_gate.py",
        "validation/profile_inputs.py",
        *_GRAPH_CODE,
        *_JUDGING_CODE,
    ),
    "validate_python": (
        "compilers/python_backend/candidate.py",
        *_PYTHON_CODE,
        *_EXPORT_CODE,
        *_JUDGING_CODE,
    ),
    "measure": (
        "compilers/precision/benchmark.py",
        "compilers/trt/api",
        "compilers/trt/evaluation",
        "compilers/trt/inspection/layer_summary.py",
        "report/text/plan.py",
        "steps/tensorrt/validate.py",
        "validation/coverage.py",
        "validation/plan_gate.py",
        "validation/profile_inputs.py",
        *_EXPORT_CODE,
        *_JUDGING_CODE,
    ),
    "join": (
        "pipelines/build.py",
        *_JOINED_CODE,
    ),
    "script": (
        "pipelines/script.py",
        *_JOINED_CODE,
    ),
    "package": (
        "compilers/python_backend/batching.py",
        "compilers/python_backend/environment",
        "compilers/python_backend/generation_parameters.py",
        "compilers/trt/inspection/header.py",
        "compilers/trt/versions.py",
        "config/triton",
        "pipelines/model_files.py",
        "pipelines/served",
        "sources/external_data.py",
        "steps/release/environment.py",
        "steps/release/package.py",
        "triton",
        "validation/profile_inputs.py",
    ),
    "check_served": (
        "compilers/python_backend/batching.py",
        "compilers/python_backend/generation_parameters.py",
        "pipelines/agreement.py",
        "pipelines/cases.py",
        "pipelines/draft.py",
        "pipelines/labels.py",
        "pipelines/model_files.py",
        "pipelines/served",
        "steps/release/check_served.py",
        "triton",
        "validation/profile_inputs.py",
    ),
    "check_served_python": (
        "compilers/python_backend/batching.py",
        "compilers/python_backend/generation_parameters.py",
        "pipelines/agreement.py",
        "pipelines/cases.py",
        "pipelines/draft.py",
        "pipelines/labels.py",
        "pipelines/model_files.py",
        "pipelines/served",
        "steps/release/check_served.py",
        "triton",
        "validation/profile_inputs.py",
        *_PYTHON_CODE,
        *_EXPORT_CODE,
    ),
    "environment": (
        "compilers/python_backend/environment",
        "steps/release/environment.py",
    ),
    "zoo": (
        "fleet/zoo",
        *_EXPORT_CODE,
    ),
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
    "in_bucket": (),
    "import_onnx": ("onnx", _ONNXRUNTIME, "numpy"),
    "export": _EXPORT_TOOLS,
    "run_reference": _PYTORCH_TOOLS,
    "sample": (*_EXPORT_TOOLS, "pillow", "pyarrow"),
    "lower": (_ONNXRUNTIME, "onnx", "polygraphy", "numpy"),
    "plan_lint": ("onnx", "numpy"),
    "plan_check": ("tensorrt-rtx-cu12-bindings", "tensorrt-rtx-cu12-libs", "polygraphy"),
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


def whole_toolchain() -> dict[str, dict[str, str]]:
    """The tools of every step, by its name: whatever is compiled, something of this decides the result."""
    return {step: step_toolchain(step) for step in _TOOLS}


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
