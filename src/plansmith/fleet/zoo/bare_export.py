"""Plain torch.onnx.export on the same model and inputs, with the dims that PyTorch takes at other sizes named."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.errors import first_line
from plansmith.fleet.zoo.graphs import Graph
from plansmith.fleet.zoo.records import BareResult

if TYPE_CHECKING:
    import torch

    from plansmith.fleet.zoo.axes import Acceptance
    from plansmith.sources.loaded_model import LoadedModel

Exporter = Literal["dynamo", "torchscript"]


def try_bare(live: LoadedModel, accepted: Acceptance, folder: Path) -> Iterator[BareResult]:
    """Export with each exporter as its documentation shows, and compare at every shape that PyTorch took.

    Args:
        live: the model, with positional tensors in and a tuple of tensors out.
        accepted: the shapes, the first of which is traced, and the axes that are named dynamic.
        folder: for the graphs.
    """
    exporters: tuple[tuple[Exporter, _Export], ...] = (("dynamo", _dynamo), ("torchscript", _torchscript))
    for name, export in exporters:
        began = time.monotonic()
        problem, moving = _judge(export, live, accepted, folder / f"{name}.onnx")
        yield BareResult(
            exporter=name,
            right=not problem,
            axes_moving=moving,
            problem=problem,
            seconds=round(time.monotonic() - began, 2),
        )


_Export = Callable[["LoadedModel", "Acceptance", Path], None]


def _judge(export: _Export, live: LoadedModel, accepted: Acceptance, path: Path) -> tuple[str, int]:
    """The first problem, empty where there is none, and how many axes move."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(live, accepted, path)
        graph = Graph(path, live.output_names)
    except Exception as error:  # noqa: BLE001 - exporters raise anything
        return f"{type(error).__name__}: {first_line(error)}", 0
    moving = sum(not any(map(graph.problem_at, axis.shapes.values())) for axis in accepted.axes)
    return next(filter(None, map(graph.problem_at, accepted.shapes)), ""), moving


def _dynamo(live: LoadedModel, accepted: Acceptance, path: Path) -> None:
    import torch

    named = _names(live, accepted)
    shapes = tuple(named.values())
    # The shapes mirror the signature, where `*tensors` is one argument that holds them all.
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(live.module.forward).parameters.values())
    program = torch.onnx.export(
        live.module,
        _arguments(live, accepted),
        input_names=list(named),
        output_names=list(live.output_names),
        dynamic_shapes=(shapes,) if variadic else shapes,
        verbose=False,
    )
    assert program is not None
    program.save(str(path))


def _torchscript(live: LoadedModel, accepted: Acceptance, path: Path) -> None:
    import torch

    named = _names(live, accepted)
    torch.onnx.export(
        live.module,
        _arguments(live, accepted),
        str(path),
        input_names=list(named),
        output_names=list(live.output_names),
        dynamic_axes=named,
        dynamo=False,
    )


def _arguments(live: LoadedModel, accepted: Acceptance) -> tuple[torch.Tensor, ...]:
    import torch

    return tuple(torch.from_numpy(accepted.base.feed[tensor.name]) for tensor in live.inputs.tensors)


def _names(live: LoadedModel, accepted: Acceptance) -> dict[str, dict[int, str]]:
    """The name of every dim that moves, by input and place."""
    named: dict[str, dict[int, str]] = {tensor.name: {} for tensor in live.inputs.tensors}
    for number, axis in enumerate(accepted.axes):
        for place in axis.places:
            named[place.tensor][place.dim] = axis.names[0] if axis.names else f"axis_{number}"
    return named
