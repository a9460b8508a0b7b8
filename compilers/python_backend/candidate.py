"""Python backend candidate: how the gate runs a packaged PyTorch model. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.python_backend.generator_model import LoadedGenerator, load_generator
from plansmith.compilers.python_backend.model import load_folder
from plansmith.errors import EngineError, first_line
from plansmith.records.engine import Engine
from plansmith.records.model import Case
from plansmith.validation.gate import CandidateRunner
from plansmith.validation.onnxruntime_runner import sizes_of

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays


def candidate_runner(engine: Engine, folder: Path, progress: Callable[[str], None]) -> CandidateRunner:
    """Load the packaged model as Triton loads it, on the CPU.

    Args:
        engine: says what was made.
        folder: of its files.
        progress: told what is done.

    Raises:
        PlansmithError: it cannot be loaded.
    """
    progress("loading what was laid out")
    running = load_folder(folder, "cpu")

    def ask(case: Case, feed: Arrays) -> Arrays:
        try:
            return running.ask(feed)
        except Exception as error:
            raise EngineError(
                f"PyTorch does not run the model in {engine.precision} at {case.name} ({sizes_of(case)}):"
                f" {first_line(error)}",
                remedy="use another --precision, or leave `python: {torch_compile: …}` out of the spec",
            ) from error

    return CandidateRunner(
        ask=ask,
        takes=lambda _: True,
        description=f"the PyTorch model as it was laid out, {engine.precision}, PyTorch {engine.toolchain['torch']} on"
        " the CPU",
        limits_of=engine.precision,
    )


def own_generator(folder: Path, progress: Callable[[str], None]) -> LoadedGenerator:
    """Load the packaged text generation model as Triton loads it, on the CPU; errors as for `candidate_runner`."""
    progress("loading what was laid out")
    return load_generator(folder, "cpu")
