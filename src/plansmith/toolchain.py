"""What a step's result depends on besides its inputs: the tools' versions and our own code."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGE = Path(__file__).parent

# Our modules and the distributions that decide a step's result. Records and numbers count everywhere.
_COMMON_CODE = ("types.py", "comparison.py", "reference.py", "worker.py")
_CODE = {
    "fetch": ("sources", "external_data.py"),
    "export": ("exporting.py", "sources", "samples", "data.py", "shapes.py", "external_data.py", "compilers"),
    "compile": ("compilers/onnxrt.py", "compilers/onnx_files.py", "external_data.py"),
    "validate": ("validation.py",),
    "package": ("packaging.py", "triton/model_config.py"),
    "check_served": ("serving.py", "triton"),
}
_TOOLS = {
    "fetch": ("torch", "transformers", "timm"),
    "export": (
        "torch",
        "transformers",
        "tokenizers",
        "timm",
        "torchvision",
        "onnx",
        "onnxscript",
        "onnxruntime",
        "numpy",
    ),
    "compile": ("onnxruntime", "onnx"),
    "validate": ("onnxruntime", "polygraphy", "numpy"),
    "package": ("tritonclient", "protobuf"),
    "check_served": ("tritonclient", "numpy"),
}


def step_toolchain(step: str) -> dict[str, str]:
    """The versions of a step's tools and a digest of its code; a tool that is not installed is empty."""
    versions = {name: _version(name) for name in _TOOLS[step]}
    return versions | {"code": _code_digest((*_COMMON_CODE, *_CODE[step]))}


@cache
def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
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
