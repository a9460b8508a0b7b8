"""PyTorch-to-ONNX exporters, and the tolerances for their graphs: rounding, experts with few tokens."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.records.model import Exporter, Precision, Rounding, Tensor
from plansmith.sources.loaded_model import left_as_it_was
from plansmith.system.memory import tells_of_memory
from plansmith.validation.comparison import TOLERANCES, Padding, compare_output, widened

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays

_UNIT = 2.0**-23
_SEED = 0
_FACTORS = 262_139
_MARGIN = 2
"""What may lie between the rounding of the smallest probe and that of others."""
ALIKE = "one token everywhere"
_COUNTS = ("num_experts", "experts")
"""What a part with experts is known by."""


@dataclass(frozen=True)
class Probe:
    """Probe: one batch at one shape, with PyTorch's outputs; `axes` gives the size of every dynamic axis."""

    name: str
    axes: Mapping[str, int]
    feed: Arrays
    answer: Arrays


@dataclass(frozen=True)
class ExportJob:
    """Export job: the model to export, and the probes to compare it with.

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
        """Return a probe's inputs, in the module's order."""
        import torch

        return tuple(torch.from_numpy(probe.feed[t.name]).to(self.device) for t in self.inputs)

    def traced_arguments(self) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the first probe."""
        return self.tensors(self.probes[0])


def write(exporter: Exporter, job: ExportJob, path: Path) -> None:
    """Write an exporter's graph to a file; it may raise any exception."""
    _EXPORTERS[exporter](job, path)


def is_available(exporter: Exporter) -> bool:
    """Whether an exporter is installed: transformers before 5.9 has none."""
    from importlib.util import find_spec

    return exporter != "patched" or find_spec("transformers.exporters") is not None


def dynamic_dims(tensor: Tensor) -> dict[int, str]:
    """Return the index and name of a tensor's dynamic dims."""
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
    """As `_with_dynamo`, with the patches of transformers.exporters.exporter_onnx.OnnxExporter.export_program."""
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
    """Apply one of transformers' patch registries, without patches for model classes that are not loaded."""
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
    """Capture the module with torch.export."""
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
    """Translate a torch.export program to an ONNX file."""
    import torch

    onnx_program = torch.onnx.export(
        program,
        input_names=[t.name for t in job.inputs],
        output_names=[t.name for t in job.outputs],
        custom_translation_table=dict(translations) if translations else None,
        opset_version=job.opset,
        dynamo=True,
        verbose=False,
    )
    assert onnx_program is not None
    mend(onnx_program)
    onnx_program.save(str(path))


def measure(job: ExportJob) -> dict[str, Rounding]:
    """Measure how much rounding moves every output, by name, at the job's probes with several samples.

    The smallest probe alone is asked where rounding moves the outputs so little there that it would not widen the
    tolerance if it moved them several times as far.
    """
    probes = [probe for probe in job.probes[:3] if len(next(iter(probe.feed.values()), ())) > 1] or job.probes[:1]
    padding = Padding(job.inputs, job.mask_input)
    roundings: dict[str, Rounding] = {}
    weights = _rounded_otherwise(job.module)
    for probe in sorted(probes, key=_elements):
        answers = _ask_with(weights, job.module, job.tensors(probe))
        for tensor, answer in zip(job.outputs, answers, strict=True):
            row = compare_output(
                probe.name,
                tensor.name,
                probe.answer[tensor.name],
                answer.cpu().numpy(),
                TOLERANCES[Precision.FP32],
                valid=padding.valid(tensor, probe.feed),
            )
            if row.elements:
                roundings[tensor.name] = _worse(
                    roundings.get(tensor.name), row.max_relative, row.quantile_relative, row.min_cosine
                )
        if not any(map(_might_widen, roundings.values())):
            break
    return roundings


def _elements(probe: Probe) -> int:
    return sum(array.size for array in probe.feed.values())


def _might_widen(rounding: Rounding) -> bool:
    several = Rounding(
        max_relative=_MARGIN * rounding.max_relative,
        quantile_relative=_MARGIN * rounding.quantile_relative,
        cosine=1 - _MARGIN * (1 - rounding.cosine),
    )
    return widened(TOLERANCES[Precision.FP32], several) != TOLERANCES[Precision.FP32]


def _worse(before: Rounding | None, largest: float, quantile: float, cosine: float) -> Rounding:
    previous = before or Rounding(max_relative=0, quantile_relative=0, cosine=1)
    return Rounding(
        max_relative=max(previous.max_relative, largest),
        quantile_relative=max(previous.quantile_relative, quantile),
        cosine=min(previous.cosine, cosine),
    )


def _ask_with(
    weights: Mapping[str, torch.Tensor], module: torch.nn.Module, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The outputs of a module with other weights; its state is restored afterwards."""
    import torch

    with torch.inference_mode(), left_as_it_was(module):
        answers: tuple[torch.Tensor, ...] = torch.func.functional_call(module, dict(weights), tuple(tensors))
    return answers


def _rounded_otherwise(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of a module, each moved by up to one unit in the last place.

    The same random factors are used again and again, a prime number of them: one pass over the weights, in pieces
    that stay in the processor's cache; drawing one for each weight takes several.
    """
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    factors = 1 + _UNIT * (2 * torch.rand(_FACTORS, generator=generator) - 1)
    moved = {}
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.is_floating_point():
                kind, here = torch.promote_types(weight.dtype, factors.dtype), factors.to(weight.device)
                moved[name] = torch.empty(weight.shape, dtype=kind, device=weight.device)
                pieces = (torch.split(tensor.reshape(-1), _FACTORS) for tensor in (weight, moved[name]))
                for piece, result in zip(*pieces, strict=True):
                    torch.mul(piece, here[: len(piece)], out=result)
    return moved


def mixes_experts(module: torch.nn.Module) -> bool:
    """Whether a model is a mixture of experts."""
    return any(hasattr(part, name) for part in module.modules() for name in _COUNTS)


def alike(probe: Probe, ask: Callable[[Arrays], Arrays]) -> Probe | None:
    """Return a probe with the same token everywhere and the model's outputs; None if the model does not take such text.

    Args:
        probe: gives the shape, and the token.
        ask: runs the model; raises anything where it does not take the inputs.
    """
    import numpy as np

    feed = {name: _of_one_token(array) for name, array in probe.feed.items()}
    if all(np.array_equal(feed[name], array) for name, array in probe.feed.items()):
        return None
    try:
        answer = ask(feed)
    except Exception as error:
        if tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        return None
    if any(not np.isfinite(array).all() for array in answer.values() if array.dtype.kind == "f"):
        return None
    return Probe(ALIKE, probe.axes, feed, answer)


def _of_one_token(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Replace all token ids by one id; flags and values stay."""
    import numpy as np

    if array.dtype.kind != "i" or array.size == 0 or int(np.asarray(array).max()) <= 1:
        return array
    return np.full_like(array, array.reshape(-1)[array.size // 2])
