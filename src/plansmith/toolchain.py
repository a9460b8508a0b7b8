"""What a step's result depends on besides its inputs: the tools' versions and our own code."""

from __future__ import annotations

import hashlib
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
_COMMON_CODE = ("types.py", "reports.py", "manifest.py", "comparison.py", "reference.py", "worker.py")
_GRAPH_CODE = ("compilers/onnxrt.py", "compilers/onnx_files.py", "external_data.py")
_EXPORT_CODE = (
    "exporting.py",
    "loading.py",
    "sources",
    "samples",
    "data",
    "data_spec.py",
    "shapes.py",
    "compilers/torch_export.py",
    "compilers/onnx_import.py",
    *_GRAPH_CODE,
)
_JUDGING_CODE = (
    "held_out.py",
    "judging.py",
    "measuring.py",
    "agreement.py",
    "task_metrics.py",
    "roles.py",
    "intervals.py",
)
_CODE = {
    "fetch": ("sources", "external_data.py"),
    "graph_files": ("sources/onnx_models.py", "external_data.py"),
    "export": _EXPORT_CODE,
    "take_graph": _EXPORT_CODE,
    "sample": (*_EXPORT_CODE, "sampling.py", "sample_sets.py", "memory.py"),
    "lower": (
        "lowering.py",
        "given_graphs.py",
        "trials.py",
        "compilers/precision",
        "validation.py",
        *_GRAPH_CODE,
        *_JUDGING_CODE,
    ),
    "compile": _GRAPH_CODE,
    "validate": ("validation.py", *_JUDGING_CODE),
    "package": ("packaging.py", "triton/model_config.py"),
    "check_served": ("serving.py", "triton"),
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
_TOOLS = {
    "fetch": ("torch", "transformers", "timm"),
    "graph_files": ("onnx", "protobuf"),
    "take_graph": ("onnx", _ONNXRUNTIME, "numpy"),
    "export": _EXPORT_TOOLS,
    "sample": (*_EXPORT_TOOLS, "pillow", "pyarrow"),
    "lower": (_ONNXRUNTIME, "onnx", "polygraphy", "numpy"),
    "compile": (_ONNXRUNTIME, "onnx"),
    "validate": (_ONNXRUNTIME, "polygraphy", "numpy"),
    "package": ("tritonclient", "protobuf"),
    "check_served": ("tritonclient", "numpy"),
}


def step_toolchain(step: str) -> dict[str, str]:
    """The versions of the tools of a step (or part), empty where one is not installed, and a digest of its code."""
    versions = {name: _version(name) for name in _TOOLS[step]}
    return versions | {"code": _code_digest((*_COMMON_CODE, *_CODE[step]))}


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
