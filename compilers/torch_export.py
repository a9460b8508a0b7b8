"""PyTorch to ONNX: several exporters, and the first whose graph agrees with the model wins.

Each exporter gets some models wrong, and some only at shapes that it did not trace. The TorchScript one costs a tenth
of the time, so it goes first; what decides is ONNX Runtime's answer beside PyTorch's at the traced shape and at shapes
that nobody traced. Where no graph follows all axes, those that matter least are given up, one more at a time.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plansmith.comparison import TOLERANCES, Padding, compare_output, widened
from plansmith.compilers import exporters, onnx_files
from plansmith.compilers.deadline import OutOfTime, cpu_seconds
from plansmith.compilers.exporters import ExportJob, Probe
from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.rewrites.registry import in_force
from plansmith.errors import ExportError, first_line
from plansmith.isolation import left_as_it_was
from plansmith.memory import tells_of_memory
from plansmith.types import Component, Dim, ExportAttempt, Exporter, Precision, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

OPSET = 18
_RAW_FILE = "exported.onnx"
_ANSWERED = ("fails at ", "differs from ")

# The cheapest first; `patched` before `dynamo` would be right as often, and costs what importing transformers costs.
# A second trace, at odd sizes, follows branches that round ones do not enter, such as padding to whole windows.
_TRACED, ODD, _UNTRACED = "traced", "odd", "untraced"
ATTEMPTS: tuple[tuple[Exporter, str], ...] = (
    ("torchscript", _TRACED),
    ("torchscript", ODD),
    ("dynamo", _TRACED),
    ("patched", _TRACED),
)

_SECONDS, _SECONDS_PER_GIB = 40, 120
"""What an exporter may take: small models take up to 20 s of the slow ones."""

_MOST_CAPTURES = 6
"""Tries of the slow exporters with fewer axes: beyond that, the model is refused."""

# How torch.export names the dims that a model needs fixed: by where the argument stands in the call, and the place.
_SPECIALISED = re.compile(r"\[(\d+)\]\.(?:size\(\)|shape)\[(\d+)\]")


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
        named = {e: _named_axes(job, reason) & set(optional) for e, reason in reasons.items()}
        for fixed, exporter in _fewer_axes(optional, named):
            if exporter != "torchscript" and _has_run_out(attempts):
                continue
            fewer = _job_with_fixed(with_fixed, fixed)
            component = _attempts(exporter, fewer, attempts, progress, fixed) if fewer else None
            if component is not None:
                why = "; ".join(f"{e}: {reason}" for e, reason in reasons.items())
                return Exported(component, tuple(attempts), dict.fromkeys(fixed, why))
    told = "\n".join(f"  {e}: {reasons[e]}" for e in _exporters() if e in reasons)
    raise ExportError(
        f"no exporter gave a graph that agrees with PyTorch:\n{told}",
        remedy="read the log; if the model branches on its data, export it yourself, then:"
        " plansmith compile onnx:model.onnx",
    )


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
    for wanted in (place for e, place in ATTEMPTS if e == exporter):
        again = wanted != _TRACED
        shown = next((name for name in (wanted, _UNTRACED) if name in known), "")
        if again and not (shown and str(attempts[-1].problem).startswith(_ANSWERED)):
            continue
        probes = sorted(job.probes, key=lambda probe: again and probe.name != shown)
        progress(f"exporting with {exporter}{left}{', once more' if again else ''}")
        attempt, component = _attempt(exporter, replace(job, probes=probes), fixed)
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


def _named_axes(job: ExportJob, problem: str) -> set[str]:
    """The axes that a refusal of torch.export names."""
    found = set()
    for argument, place in _SPECIALISED.findall(problem):
        dims = job.inputs[int(argument)].dims if int(argument) < len(job.inputs) else ()
        found |= {d for d in dims[int(place) : int(place) + 1] if isinstance(d, str)}
    return found


def _attempt(exporter: Exporter, job: ExportJob, fixed: Sequence[str] = ()) -> tuple[ExportAttempt, Component | None]:
    """Export once; what was tried, and the graph if it agreed. Only that graph's files are left in the folder."""
    names: list[str] = []
    problem, component = _try(exporter, job, names)
    if component is None:
        for leftover in job.folder.glob("*"):
            leftover.unlink()
    traced = job.probes[0].name
    attempt = ExportAttempt(
        exporter=exporter, problem=problem, traced=traced, fixed=tuple(fixed), rewrites=tuple(dict.fromkeys(names))
    )
    return attempt, component


def _try(exporter: Exporter, job: ExportJob, names: list[str]) -> tuple[str | None, Component | None]:
    """Export once; the problem in one line, or the graph that agreed. The names of the rewrites are added to a list."""
    import torch

    try:
        with (
            left_as_it_was(job.module),
            in_force(job.module, exporter, names),
            cpu_seconds(_limit(job)),
            torch.no_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            exporters.write(exporter, job, job.folder / _RAW_FILE)
        component = onnx_files.finish(job.folder / _RAW_FILE, (*job.inputs, *job.outputs))
        session = open_session(job.folder / component.file)
    except Exception as error:  # noqa: BLE001 - exporters raise anything; the next one is tried, all are told
        return _told(error), None
    lost = {t.name for t in job.inputs} - {t.name for t in component.inputs}
    if lost:
        return f"the graph does not use the input(s) {', '.join(sorted(lost))}", None
    outputs = [t.name for t in job.outputs]
    for probe in job.probes:
        at = f"{probe.name} ({', '.join(f'{axis} {size}' for axis, size in probe.axes.items())})"
        try:
            answers = dict(zip(outputs, session.run(outputs, dict(probe.feed)), strict=True))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common base
            return f"fails at {at}: {first_line(_cause(error))}", None
        problem = _disagreement(job, probe, answers)
        if problem:
            return f"differs from PyTorch at {at}: {problem}", None
    return None, component


def _limit(job: ExportJob) -> float:
    """Processor seconds that an exporter gets: symbolic sizes can keep torch.export busy for hours."""
    weights = sum(weight.numel() * weight.element_size() for weight in job.module.parameters())
    return _SECONDS + _SECONDS_PER_GIB * weights / 2**30


def _disagreement(job: ExportJob, probe: Probe, answers: Arrays) -> str | None:
    """The first output of the graph that differs from PyTorch's, in words."""
    padding = Padding(job.inputs, job.mask_input)
    for tensor in job.outputs:
        row = compare_output(
            probe.name,
            tensor.name,
            probe.answer[tensor.name],
            answers[tensor.name],
            widened(TOLERANCES[Precision.FP32], job.rounding.get(tensor.name)),
            valid=padding.valid(tensor, probe.feed),
        )
        if row.failures:
            return f"{tensor.name}: {row.failures[0]}"
    return None


def _told(error: BaseException) -> str:
    """What an exporter says of its failure, in one line: the innermost cause, and the dims that it names."""
    cause = _cause(error)
    line = f"{type(cause).__name__}: {first_line(cause)}"
    more = next((one.strip(" -") for one in str(cause).splitlines()[1:] if _SPECIALISED.search(one)), "")
    return f"{line} {more}".strip()


def _cause(error: BaseException) -> BaseException:
    """The innermost cause, which says what happened: torch wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
