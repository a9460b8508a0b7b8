"""The exporters of PyTorch to ONNX: each is asked for one file, and is judged by somebody else.

- `torchscript` runs the model once and writes down what it saw: a tenth of the others' time, but sizes that Python
  computed are constants in its graph.
- `dynamo` is torch.export, which follows sizes as symbols, and refuses what it cannot follow.
- `patched` is the same under the patches that transformers keeps for its own exporters: operators of torch in forms
  that can be translated, whole translations, and classes of transformers that no trace can follow.

Dims are DYNAMIC, never AUTO: torch.export then refuses a model that needs one of them fixed, instead of fixing it in
silence (torch.export's documentation, "Expressing dynamism").
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.records.model import Exporter, Rounding, Tensor

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


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
        device: where the module lies, and is traced: "cpu" or "cuda".
        rounding: how far rounding alone moves the outputs.
    """

    module: torch.nn.Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    probes: Sequence[Probe]
    mask_input: str | None
    opset: int
    folder: Path
    device: str = "cpu"
    rounding: Mapping[str, Rounding] = field(default_factory=dict)

    def tensors(self, probe: Probe) -> tuple[torch.Tensor, ...]:
        """A probe's inputs, in the module's order."""
        import torch

        return tuple(torch.from_numpy(probe.feed[t.name]).to(self.device) for t in self.inputs)

    def traced_arguments(self) -> tuple[torch.Tensor, ...]:
        """The first probe's."""
        return self.tensors(self.probes[0])


def write(exporter: Exporter, job: ExportJob, path: Path) -> None:
    """Have an exporter write its graph to a file; it raises whatever it likes."""
    _EXPORTERS[exporter](job, path)


def is_available(exporter: Exporter) -> bool:
    """Whether an exporter is installed: releases of transformers before 5.9 have none."""
    from importlib.util import find_spec

    return exporter != "patched" or find_spec("transformers.exporters") is not None


def dynamic_dims(tensor: Tensor) -> dict[int, str]:
    """Place and name of the dims of a tensor that vary."""
    return {place: dim for place, dim in enumerate(tensor.dims) if isinstance(dim, str)}


def _with_torchscript(job: ExportJob, path: Path) -> None:
    import torch

    torch.onnx.export(
        job.module,
        job.traced_arguments(),
        str(path),
        input_names=[t.name for t in job.inputs],
        output_names=[t.name for t in job.outputs],
        dynamic_axes={t.name: dynamic_dims(t) for t in (*job.inputs, *job.outputs)},
        opset_version=job.opset,
        dynamo=False,
    )


def _with_dynamo(job: ExportJob, path: Path) -> None:
    _translate(job, _capture(job), path)


def _with_patches(job: ExportJob, path: Path) -> None:
    """As `_with_dynamo`, as transformers.exporters.exporter_onnx.OnnxExporter.export_program goes about it."""
    from transformers.exporters import exporter_onnx, utils
    from transformers.exporters.exporter_dynamo import reset_model_state

    with _patched("onnx"), _patched("dynamo"):
        with reset_model_state(job.module):
            program = _capture(job)
        utils.apply_fx_node_fixes("onnx", program.graph_module)
        table = exporter_onnx._ONNX_TRANSLATION_TABLE  # noqa: SLF001 - transformers offers no other way
        _translate(job, program, path, translations=table, mend=exporter_onnx.apply_onnx_ir_fixes)


_EXPORTERS: dict[Exporter, Callable[[ExportJob, Path], None]] = {
    "torchscript": _with_torchscript,
    "dynamo": _with_dynamo,
    "patched": _with_patches,
}


@contextmanager
def _patched(registry: str) -> Iterator[None]:
    """The patches of one of transformers' registries, but for classes of models that nobody has loaded."""
    from transformers.exporters import utils

    models = "transformers.models."
    patches = [
        (owner, attribute, factory)
        for path, attribute, factory in utils._PATCHES.get(registry, [])  # noqa: SLF001 - transformers offers no other way
        if not path.startswith(models) or ".".join(path.split(".")[:4]) in sys.modules
        if (owner := utils.import_dotted_path(path, missing_ok=True)) is not None
    ]
    with utils.patch_attributes(patches):
        yield


def _capture(job: ExportJob) -> Any:
    """The module as torch.export sees it."""
    import torch

    shapes = tuple(dict.fromkeys(dynamic_dims(tensor), torch.export.Dim.DYNAMIC) for tensor in job.inputs)
    # The shapes mirror the signature, where `*tensors` is one argument that holds them all.
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(job.module.forward).parameters.values())
    return torch.export.export(
        job.module,
        job.traced_arguments(),
        dynamic_shapes=(shapes,) if variadic else shapes,
        strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )


def _translate(
    job: ExportJob,
    program: Any,
    path: Path,
    *,
    translations: Mapping[Any, Any] | None = None,
    mend: Callable[[Any], None] = lambda _: None,
) -> None:
    """Write what torch.export saw as an ONNX file."""
    import torch

    made = torch.onnx.export(
        program,
        input_names=[t.name for t in job.inputs],
        output_names=[t.name for t in job.outputs],
        custom_translation_table=dict(translations) if translations else None,
        opset_version=job.opset,
        dynamo=True,
        verbose=False,
    )
    assert made is not None
    mend(made)
    made.save(str(path))
