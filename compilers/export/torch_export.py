"""PyTorch-to-ONNX export: tries several exporters and keeps the first graph that agrees with the model.

Each exporter gets some models wrong, and some only at shapes that it did not trace. The TorchScript one costs a tenth
of the time, so it goes first; what decides is ONNX Runtime's answer beside PyTorch's at the traced shape and at shapes
that nobody traced. Where no graph follows all axes, those that matter least are given up, one more at a time.
"""

from __future__ import annotations

import errno
import itertools
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.export import exporters
from plansmith.compilers.export.exporters import ExportJob, Probe
from plansmith.compilers.export.rewrites import numbers
from plansmith.compilers.export.rewrites.registry import in_force
from plansmith.compilers.onnxrt import open_session
from plansmith.errors import ExportError, first_line
from plansmith.records.model import Component, Dim, ExportAttempt, Exporter, Precision, Tensor
from plansmith.sources.loaded_model import left_as_it_was
from plansmith.system.memory import tells_of_memory
from plansmith.validation.comparison import TOLERANCES, Padding, compare_output, widened

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays

_RAW_FILE = "exported.onnx"
_LOST = "the graph does not use"
_ANSWERED = ("fails at ", "differs from ")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# How torch.export names the dims that a model needs fixed: by where the argument stands in the call, and the place.
_SPECIALISED = re.compile(r"\[(\d+)\]\.(?:size\(\)|shape)\[(\d+)\]")
OPSET = 18
_MOST_CAPTURES = 6
"""Tries of the slow exporters with fewer axes: beyond that, the model is refused."""


class OutOfTime(Exception):
    """Time limit exceeded."""


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Raise `OutOfTime` in the block once it has used so much CPU time.

    Python looks at signals between two of its own steps and in the main thread alone: there is no limit in another
    thread, nor inside of one long call of a library.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime(f"gave up after {limit:.0f} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


_NO_CODE_FAILED = (*_ANSWERED, _LOST, OutOfTime.__name__)


_SECONDS, _SECONDS_PER_GIB = 40, 120
"""What an exporter may take: small models take up to 20 s of the slow ones."""


def attempt_export(
    exporter: Exporter, job: ExportJob, fixed: Sequence[str] = (), *, follow: bool = True
) -> tuple[ExportAttempt, Component | None]:
    """Try one export; return the attempt, and the graph if it matches. Only that graph's files stay in the folder.

    What Python makes of sizes is followed only as long as no code fails on it: a dict knows no tensor for a key.
    """
    names: list[str] = []
    problem, component = _try(exporter, job, names, follow)
    if component is None:
        for leftover in job.folder.glob("*"):
            leftover.unlink()
        if numbers.NAME in names and not str(problem).startswith(_NO_CODE_FAILED):
            return attempt_export(exporter, job, fixed, follow=False)
    traced = job.probes[0].name
    attempt = ExportAttempt(
        exporter=exporter, problem=problem, traced=traced, fixed=tuple(fixed), rewrites=tuple(dict.fromkeys(names))
    )
    return attempt, component


def _try(exporter: Exporter, job: ExportJob, names: list[str], follow: bool) -> tuple[str | None, Component | None]:
    """Export once; return the problem in one line, or the graph that agreed. Adds the rewrites' names to a list.

    Raises:
        Exception: there is no room on the disk, which tells nothing about the exporter, nor about the axes.
    """
    import torch

    try:
        with (
            left_as_it_was(job.module),
            in_force(job.module, exporter, names, follow=follow),
            cpu_seconds(_limit(job)),
            torch.no_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            exporters.write(exporter, job, job.folder / _RAW_FILE)
        component = onnx_files.finish(job.folder / _RAW_FILE, (*job.inputs, *job.outputs))
        session = open_session(job.folder / component.file)
    except Exception as error:
        if getattr(_cause(error), "errno", None) in _NO_ROOM:
            raise
        return _describe_failure(error), None
    lost = {t.name for t in job.inputs} - {t.name for t in component.inputs}
    if lost:
        return f"{_LOST} {'the input' if len(lost) == 1 else 'the inputs'} {', '.join(sorted(lost))}", None
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
    """The CPU time limit of an exporter in seconds: symbolic sizes can keep torch.export busy for hours."""
    weights = sum(weight.numel() * weight.element_size() for weight in job.module.parameters())
    return _SECONDS + _SECONDS_PER_GIB * weights / 2**30


def _disagreement(job: ExportJob, probe: Probe, answers: Arrays) -> str | None:
    """A message about the first output of the graph that differs from PyTorch's."""
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


def _describe_failure(error: BaseException) -> str:
    """Describe an exporter's failure in one line: the innermost cause, and the dims it names."""
    cause = _cause(error)
    line = f"{type(cause).__name__}: {first_line(cause)}"
    more = next(
        (text_line.strip(" -") for text_line in str(cause).splitlines()[1:] if _SPECIALISED.search(text_line)), ""
    )
    return f"{line} {more}".strip()


def _cause(error: BaseException) -> BaseException:
    """The innermost cause: torch wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def could_answer(attempt: ExportAttempt) -> bool:
    """Whether a failed attempt produced a graph that ONNX Runtime could open."""
    return str(attempt.problem).startswith(_ANSWERED)


def named_axes(job: ExportJob, problem: str) -> set[str]:
    """Return the axes named in an error of torch.export."""
    names = set()
    for argument, place in _SPECIALISED.findall(problem):
        dims = job.inputs[int(argument)].dims if int(argument) < len(job.inputs) else ()
        names |= {d for d in dims[int(place) : int(place) + 1] if isinstance(d, str)}
    return names


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


@dataclass(frozen=True)
class Exported:
    """The matching graph, all attempts up to it, and the axes that had to be made static, with reasons."""

    component: Component
    attempts: tuple[ExportAttempt, ...]
    given_up: Mapping[str, str]


def output_tensors(names: Sequence[str], probes: Sequence[Probe]) -> tuple[Tensor, ...]:
    """Name the dims of the outputs by comparing them over shapes.

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
    """Export with the first exporter whose graph matches PyTorch on all probes.

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
    summary = "\n".join(f"  {e}: {reasons[e]}" for e in _exporters() if e in reasons)
    raise ExportError(
        f"no exporter gave a graph that agrees with PyTorch:\n{summary}",
        remedy="serve a model of transformers or timm itself with --engine python; or read the log and, if the model"
        " branches on its data, export it yourself, then: plansmith compile onnx:model.onnx",
    )


def _decisive(axis: str, reasons: Mapping[Exporter, str], named: Mapping[Exporter, set[str]]) -> str:
    """The main reason why an axis was fixed: the failure that names it, else that of the most capable exporter."""
    exporter = next((e for e in named if axis in named[e]), next(iter(reasons)))
    return f"{exporter}: {reasons[exporter]}"


def _exporters() -> list[Exporter]:
    return [e for e in dict.fromkeys(exporter for exporter, _ in ATTEMPTS) if exporters.is_available(e)]


def _has_run_out(attempts: Sequence[ExportAttempt]) -> bool:
    """Whether torch.export ran out of time: it would take as long with patches, or with fewer dynamic axes."""
    return any(str(a.problem).startswith(OutOfTime.__name__) for a in attempts)


def _job_with_fixed(with_fixed: Callable[[Sequence[str]], ExportJob], fixed: Sequence[str]) -> ExportJob | None:
    """A job with fewer dynamic axes; None where the model itself fails with that (some axes must vary together)."""
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
    """Export with one exporter, with each of its example shapes; append the attempts to a list."""
    left = f" and {' and '.join(fixed)} fixed" if fixed else ""
    names = {probe.name for probe in job.probes}
    for shown in (place for e, place in ATTEMPTS if e == exporter):
        again = shown != TRACED
        if again and not (shown in names and could_answer(attempts[-1])):
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
    """Yield sets of axes to fix, each with the exporter to try: small sets first, the least needed axes first.

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
