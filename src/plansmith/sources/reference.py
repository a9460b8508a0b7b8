"""Spec options that a source does not support, by its kind."""

from __future__ import annotations

from plansmith.config.source_reference import FILE_SUFFIXES, SourceReference, is_model_scheme
from plansmith.config.spec import ModelSpec
from plansmith.errors import UsageError


def refuse_unfitting(reference: SourceReference, spec: ModelSpec) -> None:
    """Refuse spec options that the kind of source does not support.

    Raises:
        UsageError: names what cannot be, and why.
    """
    if reference.scheme == "onnx" and spec.task:
        raise UsageError(
            "an ONNX file has the head that it was exported with: a task cannot change it",
            remedy="leave the task out, or compile the model that the file was exported from (hf:…, timm:…)",
        )
    if reference.scheme in FILE_SUFFIXES and spec.random_weights:
        raise UsageError("such a file holds its weights: there are none to draw", remedy="leave random_weights out")
    if reference.scheme == "onnx" and spec.device != "cpu":
        raise UsageError("an ONNX file is not exported: a GPU has nothing to do", remedy="leave device out")
    if not is_model_scheme(reference.scheme) and spec.random_weights:
        kind = "registered model" if reference.scheme == "mlflow" else "model in a bucket"
        raise UsageError(f"a {kind} has its weights: there are none to draw", remedy="leave random_weights out")
    if reference.scheme == "torch":
        _refuse_for_module(spec)
    if reference.scheme == "timm":
        from plansmith.sources.timm import require_task

        require_task(spec.task)
    described = [name for name in ("inputs", "outputs") if getattr(spec, name)]
    if reference.scheme == "timm" and described:
        raise UsageError(
            f"a timm model takes images and gives one output: {' and '.join(described)} cannot change that",
            remedy=f"leave {' and '.join(described)} out; a task of image-feature-extraction gives pooled features",
        )


def _refuse_for_module(spec: ModelSpec) -> None:
    settings = [name for name in ("task", "outputs") if getattr(spec, name)]
    if settings:
        raise UsageError(
            f"a program of torch.export has its own outputs: {' and '.join(settings)} cannot change them",
            remedy=f"leave {' and '.join(settings)} out, or name the model that it was made from (hf:…, timm:…)",
        )
    if spec.device != "cpu":
        raise UsageError("a program of torch.export is held on the CPU", remedy="leave device out")
