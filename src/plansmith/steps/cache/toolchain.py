"""Toolchain part of cache keys: tool versions and plansmith's own code, on which results depend."""

from __future__ import annotations

import hashlib
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
    "records/model.py",
    "records/pipeline.py",
    "records/release.py",
    "records/validation.py",
    "steps/worker/__main__.py",
    "steps/worker/tasks.py",
    "system/digest.py",
    "system/tasks.py",
    "validation/comparison.py",
)
_GRAPH_CODE = (
    "compilers/onnx_files.py",
    "compilers/onnxrt.py",
    "sources/onnx_file.py",
)
_EXPORT_CODE = (
    "compilers/export",
    "compilers/precision/graph.py",
    "compilers/python_backend/generator_loading.py",
    "compilers/shape_inputs.py",
    "config/data.py",
    "config/shapes.py",
    "config/source_reference.py",
    "data",
    "formatting.py",
    "pipelines/answer_kinds.py",
    "pipelines/audio",
    "pipelines/detect.py",
    "pipelines/image",
    "pipelines/in_process.py",
    "pipelines/text",
    "samples/sentences.txt",
    "sources",
    "steps/worker/import_onnx.py",
    "system/memory.py",
    *_GRAPH_CODE,
)
_PYTHON_CODE = (
    "compilers/python_backend/batching.py",
    "compilers/python_backend/generate.py",
    "compilers/python_backend/generation_parameters.py",
    "compilers/python_backend/generator_model.py",
    "compilers/python_backend/model.py",
    "compilers/python_backend/model_folder.py",
    "compilers/python_backend/run.py",
    "config/engine_options.py",
)
_JUDGING_CODE = (
    "data/labels.py",
    "validation/gate.py",
    "validation/metrics",
    "validation/onnxruntime_runner.py",
    "validation/verdict.py",
)
_JOINED_CODE = (
    "compilers/python_backend/candidate.py",
    "compilers/python_backend/generation_parameters.py",
    "compilers/python_backend/model.py",
    "pipelines/agreement.py",
    "pipelines/cases.py",
    "pipelines/dali",
    "pipelines/draft.py",
    "pipelines/in_process.py",
    "pipelines/requests.py",
    "pipelines/served",
    *_PYTHON_CODE,
    *_EXPORT_CODE,
    *_JUDGING_CODE,
)
_CODE = {
    "fetch": (
        "compilers/python_backend/generator_loading.py",
        "config/source_reference.py",
        "pipelines/answer_kinds.py",
        "pipelines/audio",
        "pipelines/detect.py",
        "pipelines/image",
        "pipelines/in_process.py",
        "pipelines/text",
        "sources",
    ),
    "graph_files": ("sources/onnx_file.py",),
    "registered": (
        "config/source_reference.py",
        "sources/directory.py",
        "sources/mlflow",
        "sources/remote_files.py",
        "system/aws",
    ),
    "in_bucket": (
        "config/source_reference.py",
        "sources/directory.py",
        "sources/mlflow",
        "sources/remote_files.py",
        "sources/s3.py",
        "system/aws",
    ),
    "export": _EXPORT_CODE,
    "run_reference": _EXPORT_CODE,
    "import_onnx": _EXPORT_CODE,
    "sample": (
        "steps/worker/sampling.py",
        "steps/worker/sample_request.py",
        *_EXPORT_CODE,
    ),
    "lower": (
        "compilers/precision",
        "config/engine_options.py",
        "system/gpus.py",
        "system/memory.py",
        "system/process.py",
        *_GRAPH_CODE,
        *_JUDGING_CODE,
    ),
    "plan_lint": (
        "compilers/precision",
        "compilers/shape_inputs.py",
        "compilers/trt/lint.py",
        "compilers/trt/rtx.py",
        *_GRAPH_CODE,
    ),
    "plan_check": (
        "compilers/trt/api",
        "compilers/trt/build_tasks.py",
        "compilers/trt/build_worker.py",
        "compilers/trt/failures.py",
        "compilers/trt/layers.py",
        "compilers/trt/plan_header.py",
        "compilers/trt/rtx.py",
        "compilers/trt/rtx_graph.py",
        "steps/tensorrt/graph.py",
    ),
    "plan_graph": (
        "compilers/precision",
        "compilers/shape_inputs.py",
        "compilers/trt/layers.py",
        *_GRAPH_CODE,
    ),
    # A machine without TensorRT finds the plan that another one built: its version stands beside this in the key.
    "plan": (
        "compilers/trt/api",
        "compilers/trt/build.py",
        "compilers/trt/build_tasks.py",
        "compilers/trt/build_worker.py",
        "compilers/trt/layers.py",
        "compilers/trt/plan_header.py",
        "compilers/trt/profiles.py",
        "compilers/trt/trtexec",
        "report/text.py",
        "steps/tensorrt/compile.py",
        "validation/coverage.py",
    ),
    "compile": _GRAPH_CODE,
    "compile_python": (
        "compilers/python_backend/generator_loading.py",
        "sources/huggingface/models.py",
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
        "compilers/trt/layers.py",
        "report/text.py",
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
        "pipelines/build.py",
        *_JOINED_CODE,
    ),
    "package": (
        "compilers/python_backend/environment",
        "compilers/python_backend/generation_parameters.py",
        "compilers/python_backend/run.py",
        "compilers/trt/plan_header.py",
        "compilers/trt/versions.py",
        "config/triton",
        "pipelines/draft.py",
        "pipelines/served",
        "sources/onnx_file.py",
        "steps/release/environment.py",
        "steps/release/package.py",
        "triton",
        "validation/profile_inputs.py",
    ),
    "check_served": (
        "compilers/python_backend/generation_parameters.py",
        "compilers/python_backend/run.py",
        "pipelines/agreement.py",
        "pipelines/cases.py",
        "pipelines/draft.py",
        "pipelines/served",
        "steps/release/check_served.py",
        "triton",
        "validation/profile_inputs.py",
    ),
    "check_served_python": (
        "compilers/python_backend/generation_parameters.py",
        "compilers/python_backend/run.py",
        "pipelines/agreement.py",
        "pipelines/cases.py",
        "pipelines/draft.py",
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
    "environment": ("packaging", "uv"),
    "zoo": _EXPORT_TOOLS,
}


def step_toolchain(step: str) -> dict[str, str]:
    """Return the tool versions of a step (or part), empty if not installed, and a digest of its code."""
    versions = {name: _version(name) for name in _TOOLS[step]}
    return versions | {"code": _code_digest((*_COMMON_CODE, *_CODE[step]))}


def whole_toolchain() -> dict[str, dict[str, str]]:
    """Return the tools of every step, by its name: any compile depends on some of them."""
    return {step: step_toolchain(step) for step in _TOOLS}


@cache
def _version(distribution: str) -> str:
    for build in _BUILDS if distribution == _ONNXRUNTIME else ("",):
        with suppress(PackageNotFoundError):
            return version(distribution + build)
    return ""


def _code_digest(places: tuple[str, ...]) -> str:
    return hashlib.sha256(b"".join(map(_place_digest, places))).hexdigest()


@cache
def _place_digest(place: str) -> bytes:
    """Return the digest of a module, or of a folder's; most steps have some of the same."""
    path, digest = _PACKAGE / place, hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.suffix in {".py", ".txt"}) if path.is_dir() else [path]
    for file in files:
        digest.update(file.relative_to(_PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.digest()
