"""One exporter's try at one job: the graph, beside PyTorch at every shape, or what was wrong."""

from __future__ import annotations

import errno
import re
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.export import exporters
from plansmith.compilers.export.exporters import ExportJob, Probe
from plansmith.compilers.export.rewrites import numbers
from plansmith.compilers.export.rewrites.registry import in_force
from plansmith.compilers.onnxrt import open_session
from plansmith.errors import first_line
from plansmith.records.model import Component, ExportAttempt, Exporter, Precision
from plansmith.sources.module_state import left_as_it_was
from plansmith.validation.comparison import TOLERANCES, Padding, compare_output, widened


class OutOfTime(Exception):
    """The limit was reached."""


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Raise `OutOfTime` in the code inside once it has used so much of the processor.

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


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_RAW_FILE = "exported.onnx"

_LOST = "the graph does not use"

_ANSWERED = ("fails at ", "differs from ")

_NO_CODE_FAILED = (*_ANSWERED, _LOST, OutOfTime.__name__)

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_SECONDS, _SECONDS_PER_GIB = 40, 120
"""What an exporter may take: small models take up to 20 s of the slow ones."""

# How torch.export names the dims that a model needs fixed: by where the argument stands in the call, and the place.
_SPECIALISED = re.compile(r"\[(\d+)\]\.(?:size\(\)|shape)\[(\d+)\]")


def attempt_export(
    exporter: Exporter, job: ExportJob, fixed: Sequence[str] = (), *, follow: bool = True
) -> tuple[ExportAttempt, Component | None]:
    """Export once; what was tried, and the graph if it agreed. Only that graph's files are left in the folder.

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
    """Export once; the problem in one line, or the graph that agreed. The names of the rewrites are added to a list.

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
        return _told(error), None
    lost = {t.name for t in job.inputs} - {t.name for t in component.inputs}
    if lost:
        return f"{_LOST} the input(s) {', '.join(sorted(lost))}", None
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


def could_answer(attempt: ExportAttempt) -> bool:
    """Whether a failed attempt gave a graph that ONNX Runtime could open."""
    return str(attempt.problem).startswith(_ANSWERED)


def named_axes(job: ExportJob, problem: str) -> set[str]:
    """The axes that a refusal of torch.export names."""
    found = set()
    for argument, place in _SPECIALISED.findall(problem):
        dims = job.inputs[int(argument)].dims if int(argument) < len(job.inputs) else ()
        found |= {d for d in dims[int(place) : int(place) + 1] if isinstance(d, str)}
    return found
