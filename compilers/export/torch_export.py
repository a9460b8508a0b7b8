"""PyTorch to ONNX: several exporters, and the first whose graph agrees with the model wins.

Each exporter gets some models wrong, and some only at shapes that it did not trace. The TorchScript one costs a tenth
of the time, so it goes first; what decides is ONNX Runtime's answer beside PyTorch's at the traced shape and at shapes
that nobody traced. Where no graph follows all axes, those that matter least are given up, one more at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plansmith.compilers.export import exporters
from plansmith.compilers.export.attempts import OutOfTime, attempt_export, could_answer, named_axes
from plansmith.compilers.export.exporters import ExportJob, Probe
from plansmith.errors import ExportError
from plansmith.records.model import Component, Dim, ExportAttempt, Exporter, Tensor
from plansmith.system.memory import tells_of_memory

OPSET = 18

# The cheapest first; `patched` before `dynamo` would be right as often, and costs what importing transformers costs.
# Further traces, at odd sizes, follow branches that round ones do not enter, such as padding to whole windows.
TRACED, ODD, UNTRACED = "traced", "odd", "untraced"
ATTEMPTS: tuple[tuple[Exporter, str], ...] = (
    ("torchscript", TRACED),
    ("torchscript", ODD),
    ("torchscript", UNTRACED),
    ("dynamo", TRACED),
    ("patched", TRACED),
)

_MOST_CAPTURES = 6
"""Tries of the slow exporters with fewer axes: beyond that, the model is refused."""


@dataclass(frozen=True)
class Exported:
    """The graph that agreed, every attempt up to it, and the axes that had to be given up for it, each with why."""

    component: Component
    attempts: tuple[ExportAttempt, ...]
    given_up: Mapping[str, str]


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


def export(
    job: ExportJob,
    progress: Callable[[str], None],
    *,
    optional: Sequence[str] = (),
    with_fixed: Callable[[Sequence[str]], ExportJob] | None = None,
) -> Exported:
    """Export with the first exporter whose graph agrees with PyTorch on all probes.

    Args:
        job: with every axis that the model itself can move.
        progress: told what is done.
        optional: axes that may be given up, the least needed first.
        with_fixed: the same job with some of those fixed.

    Raises:
        ExportError: no exporter's graph agrees; holds the reason of each.
    """
    attempts: list[ExportAttempt] = []
    for exporter in _exporters():
        if not _has_run_out(attempts):
            component = _attempts(exporter, job, attempts, progress)
            if component is not None:
                return Exported(component, tuple(attempts), {})
    reasons = {a.exporter: str(a.problem) for a in reversed(attempts)}
    if with_fixed is not None:
        named = {e: named_axes(job, reason) & set(optional) for e, reason in reasons.items()}
        for fixed, exporter in _fewer_axes(optional, named):
            if exporter != "torchscript" and _has_run_out(attempts):
                continue
            fewer = _job_with_fixed(with_fixed, fixed)
            component = _attempts(exporter, fewer, attempts, progress, fixed) if fewer else None
            if component is not None:
                why = {axis: _decisive(axis, reasons, named) for axis in fixed}
                return Exported(component, tuple(attempts), why)
    told = "\n".join(f"  {e}: {reasons[e]}" for e in _exporters() if e in reasons)
    raise ExportError(
        f"no exporter gave a graph that agrees with PyTorch:\n{told}",
        remedy="serve the PyTorch model itself with --engine python; or read the log and, if the model branches on its"
        " data, export it yourself, then: plansmith compile onnx:model.onnx",
    )


def _decisive(axis: str, reasons: Mapping[Exporter, str], named: Mapping[Exporter, set[str]]) -> str:
    """What tells most of why an axis was given up: the refusal that names it, else that of the most able exporter."""
    exporter = next((e for e in named if axis in named[e]), next(iter(reasons)))
    return f"{exporter}: {reasons[exporter]}"


def _exporters() -> list[Exporter]:
    return [e for e in dict.fromkeys(exporter for exporter, _ in ATTEMPTS) if exporters.is_available(e)]


def _has_run_out(attempts: Sequence[ExportAttempt]) -> bool:
    """Whether torch.export was given up for its time: it would take as long under patches, or with fewer axes."""
    return any(str(a.problem).startswith(OutOfTime.__name__) for a in attempts)


def _job_with_fixed(with_fixed: Callable[[Sequence[str]], ExportJob], fixed: Sequence[str]) -> ExportJob | None:
    """A job with fewer axes; None where the model itself refuses that (some sides move only together)."""
    try:
        return with_fixed(fixed)
    except Exception as error:
        if tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        return None


def _attempts(
    exporter: Exporter,
    job: ExportJob,
    attempts: list[ExportAttempt],
    progress: Callable[[str], None],
    fixed: Sequence[str] = (),
) -> Component | None:
    """Export with one exporter, at every shape that it is to be shown; adds what was tried to a list."""
    left = f" and {' and '.join(fixed)} fixed" if fixed else ""
    known = {probe.name for probe in job.probes}
    for shown in (place for e, place in ATTEMPTS if e == exporter):
        again = shown != TRACED
        if again and not (shown in known and could_answer(attempts[-1])):
            continue
        probes = sorted(job.probes, key=lambda probe: again and probe.name != shown)
        progress(f"exporting with {exporter}{left}{', once more' if again else ''}")
        attempt, component = attempt_export(exporter, replace(job, probes=probes), fixed)
        attempts.append(attempt)
        if component is not None:
            return component
    return None


def _fewer_axes(
    optional: Sequence[str], named: Mapping[Exporter, set[str]]
) -> Iterator[tuple[tuple[str, ...], Exporter]]:
    """Sets of axes to give up, with an exporter to try each with: few before many, the least needed first.

    Args:
        optional: the axes, the least needed first.
        named: what each exporter's refusal said about them; it is not asked again without having its way.
    """
    captures = 0
    last = optional[-1:]
    subsets = [s for n in range(1, len(optional) + 1) for s in itertools.combinations(optional, n)]
    for fixed in sorted(subsets, key=lambda s: s[-1:] == last):  # the batch, or whatever is needed most, with the last
        for exporter, axes in named.items():
            slow = exporter != "torchscript"
            if not axes <= set(fixed) or (slow and captures == _MOST_CAPTURES):
                continue
            captures += slow
            yield fixed, exporter
