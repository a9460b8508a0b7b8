"""PyTorch to ONNX: two exporters, and the one whose graph agrees with the model wins.

Each exporter gets some models wrong, and some only at shapes that it did not trace. The TorchScript one
costs a tenth of the time, so it goes first; what decides is ONNX Runtime's answer beside PyTorch's at
the traced shape and at shapes that nobody traced.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.comparison import TOLERANCES, Padding, compare_output
from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import open_session
from plansmith.errors import ExportError, first_line
from plansmith.types import Component, Dim, ExportAttempt, Precision, Tensor

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

OPSET = 18
_RAW_FILE = "exported.onnx"

Exporter = Literal["torchscript", "dynamo"]


@dataclass(frozen=True)
class Probe:
    """One batch at one shape, with PyTorch's answer; `axes` gives the size of every named dim."""

    name: str
    axes: Mapping[str, int]
    feed: Arrays
    answer: Arrays


@dataclass(frozen=True)
class ExportJob:
    """What to export and how to judge it.

    Args:
        module: positional tensors in, a tuple of tensors out.
        inputs: the module's arguments, with named dims where they vary.
        outputs: likewise for what it returns.
        probes: the first one is traced; all are compared.
        mask_input: the input that marks padding.
        opset: the ONNX operator set to write.
        folder: where model.onnx goes; empty.
    """

    module: torch.nn.Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    probes: Sequence[Probe]
    mask_input: str | None
    opset: int
    folder: Path

    def traced_arguments(self) -> tuple[torch.Tensor, ...]:
        """The first probe as tensors, in the module's order."""
        import torch

        return tuple(torch.from_numpy(self.probes[0].feed[t.name]) for t in self.inputs)

    def moving_dims(self, tensor: Tensor) -> dict[int, str]:
        """Place and name of the dims of a tensor that vary."""
        return {place: dim for place, dim in enumerate(tensor.dims) if isinstance(dim, str)}


def output_tensors(names: Sequence[str], probes: Sequence[Probe]) -> tuple[Tensor, ...]:
    """Name the dims of the outputs by watching them over shapes.

    A dim that always equals an axis is that axis; one that never moves is fixed; any other gets a name
    of its own.
    """
    tensors = []
    for name in names:
        shapes = [p.answer[name].shape for p in probes]
        dims: list[Dim] = []
        for place in range(len(shapes[0])):
            sizes = [shape[place] for shape in shapes]
            axis = next(
                (a for a in probes[0].axes if all(p.axes[a] == s for p, s in zip(probes, sizes, strict=True))), None
            )
            dims.append(axis or (sizes[0] if len(set(sizes)) == 1 else f"{name}_dim{place}"))
        tensors.append(Tensor(name=name, dtype=probes[0].answer[name].dtype.name, dims=tuple(dims)))
    return tuple(tensors)


def export(job: ExportJob, progress: Callable[[str], None]) -> tuple[Component, tuple[ExportAttempt, ...]]:
    """Export with the first exporter whose graph agrees with PyTorch on all probes.

    Raises:
        ExportError: no exporter's graph agrees; holds the reason of each.
    """
    attempts: list[ExportAttempt] = []
    exporters: tuple[Exporter, ...] = ("torchscript", "dynamo")
    for exporter in exporters:
        progress(f"exporting with {exporter}")
        problem, component = _attempt(exporter, job)
        attempts.append(ExportAttempt(exporter=exporter, problem=problem))
        if component is not None:
            return component, tuple(attempts)
        for leftover in job.folder.glob("*"):
            leftover.unlink()
    reasons = "\n".join(f"  {a.exporter}: {a.problem}" for a in attempts)
    raise ExportError(
        f"neither exporter gave a graph that agrees with PyTorch:\n{reasons}",
        remedy="read the log; if the model branches on its data, export it yourself, then:"
        " plansmith compile onnx:model.onnx",
    )


def _attempt(exporter: Exporter, job: ExportJob) -> tuple[str | None, Component | None]:
    """Export once; the problem in one line, or the graph that agreed."""
    import torch

    run = _with_torchscript if exporter == "torchscript" else _with_dynamo
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(job, job.folder / _RAW_FILE)
        component = onnx_files.finish(job.folder / _RAW_FILE, (*job.inputs, *job.outputs))
        session = open_session(job.folder / component.file)
    except Exception as error:  # noqa: BLE001 - exporters raise anything; the next one is tried, both are told
        return f"{type(error).__name__}: {first_line(_cause(error))}", None
    lost = {t.name for t in job.inputs} - {t.name for t in component.inputs}
    if lost:
        return f"the graph does not use the input(s) {', '.join(sorted(lost))}", None
    names = [t.name for t in job.outputs]
    for probe in job.probes:
        try:
            answers = dict(zip(names, session.run(names, dict(probe.feed)), strict=True))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common base
            return f"fails at {probe.name} {probe.axes}: {first_line(_cause(error))}", None
        problem = _disagreement(job, probe, answers)
        if problem:
            return f"differs from PyTorch at {probe.name} {probe.axes}: {problem}", None
    return None, component


def _disagreement(job: ExportJob, probe: Probe, answers: Arrays) -> str | None:
    """The first output of the graph that differs from PyTorch's, in words."""
    padding = Padding(job.inputs, job.mask_input)
    for tensor in job.outputs:
        row = compare_output(
            probe.name,
            tensor.name,
            probe.answer[tensor.name],
            answers[tensor.name],
            TOLERANCES[Precision.FP32],
            valid=padding.valid(tensor, probe.feed),
        )
        if row.failures:
            return f"{tensor.name}: {row.failures[0]}"
    return None


def _with_torchscript(job: ExportJob, path: Path) -> None:
    import torch

    torch.onnx.export(
        job.module,
        job.traced_arguments(),
        str(path),
        input_names=[t.name for t in job.inputs],
        output_names=[t.name for t in job.outputs],
        dynamic_axes={t.name: job.moving_dims(t) for t in (*job.inputs, *job.outputs)},
        opset_version=job.opset,
        dynamo=False,
    )


def _with_dynamo(job: ExportJob, path: Path) -> None:
    import torch

    axes = {dim: torch.export.Dim(dim) for t in job.inputs for dim in job.moving_dims(t).values()}
    shapes = tuple({i: axes[d] for i, d in job.moving_dims(t).items()} for t in job.inputs)
    # The shapes mirror the signature, where `*tensors` is one argument that holds them all.
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(job.module.forward).parameters.values())
    program = torch.onnx.export(
        job.module,
        job.traced_arguments(),
        input_names=[t.name for t in job.inputs],
        output_names=[t.name for t in job.outputs],
        dynamic_shapes=(shapes,) if variadic else shapes,
        opset_version=job.opset,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(str(path))


def _cause(error: BaseException) -> BaseException:
    """The innermost cause, which says what happened: torch wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
