"""The page on targets, from their files."""

from __future__ import annotations

from plansmith.config.target_names import runtime_names
from plansmith.config.targets import Target, load_target

from .markdown import page, prose, table

_VERSIONS = {
    "triton": "Triton",
    "cuda": "CUDA",
    "driver": "driver",
    "tensorrt": "TensorRT",
    "onnxruntime": "ONNX Runtime",
    "python": "Python",
    "dali": "DALI",
}


def target_pages() -> dict[str, str]:
    """The page by its path in docs/."""
    targets = [load_target(name) for name in runtime_names()]
    rows = [[f"`{target.name}`", *(_version(target, field) for field in _VERSIONS)] for target in targets]
    sources = [f"## {target.name}\n\n{prose(target.description)}.\n\n{_sources(target)}" for target in targets]
    return {
        "reference/targets.md": page(
            "Targets",
            "What `--target` takes; [Targets](../targets.md) says what a target decides. A value with ? was inferred"
            " and should be verified in the image; an empty one is not known. `NAME-cpu` is the same runtime on CPU"
            " instances.",
            table(["target", *_VERSIONS.values()], rows),
            *sources,
        )
    }


def _version(target: Target, field: str) -> str:
    value = target.onnxruntime and target.onnxruntime.version if field == "onnxruntime" else getattr(target, field)
    return f"{value}{'?' * (field in target.inferred)}" if value else ""


def _sources(target: Target) -> str:
    images = [f"- image: `{image}`" for image in dict.fromkeys(target.images.values())]
    return "\n".join([*images, *(f"- {prose(source)}" for source in target.sources)])
