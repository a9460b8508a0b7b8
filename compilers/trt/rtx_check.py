"""TensorRT-RTX graph check on the parent's side: runs in a child, as the library may end its process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plansmith.compilers.trt.build import WORKER_MODULE
from plansmith.compilers.trt.build_tasks import CHECK_GRAPH
from plansmith.compilers.trt.rtx import NAME
from plansmith.errors import EngineError, InternalError, PlansmithError
from plansmith.formatting import format_seconds
from plansmith.records.engine import BuildCheck, CheckRequest
from plansmith.system.process import Worker

# A build inside of Myelin cannot be ended from inside the child; this much after the deadline it is killed.
_GRACE_SECONDS = 5.0
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def check_build(request: CheckRequest, *, log: Path, progress: Callable[[str], None]) -> BuildCheck:
    """Check that a graph parses and builds; a crash or timeout of the library is no verdict on the graph.

    Args:
        request: the graph, and what decides the build.
        log: takes all that the library says.
        progress: told what is being done.

    Raises:
        EngineError: the graph or its profiles are refused, or do not become what was asked.
        EnvironmentFault: the library does not load, or there is not enough memory.
    """
    with Worker(WORKER_MODULE, log, progress, environment=_NO_GPU) as worker:
        most = request.deadline_seconds + _GRACE_SECONDS
        try:
            with worker.limited(most):
                return CHECK_GRAPH.run(worker, request)
        except EngineError as error:
            raise EngineError(
                error.message,
                remedy=f"{error.remedy}; or, as {NAME} stands in for the target's TensorRT, leave out check_build",
                log=error.log,
            ) from error
        except PlansmithError as error:
            if worker.is_out_of_time:
                return _unknown(request, f"it was ended after {format_seconds(most)}", most)
            if isinstance(error, InternalError) and worker.is_dead:
                return _unknown(request, f"the library crashed ({worker.death}); the graph is {request.graph}", 0.0)
            raise


def _unknown(request: CheckRequest, reason: str, seconds: float) -> BuildCheck:
    return BuildCheck(
        library=NAME,
        compute_capabilities=request.compute_capabilities,
        in_place_of=request.in_place_of,
        precision=request.precision,
        verdict="unknown",
        reason=reason,
        seconds=seconds,
    )
