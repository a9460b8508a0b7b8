"""TensorRT-RTX graph check in the child: parses and builds a graph in place of TensorRT."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.api.building import (
    LAYERS_FILE,
    Watch,
    explained,
    serialized_plan,
    warnings_of,
    write_layers,
)
from plansmith.compilers.trt.api.runtime import listen
from plansmith.compilers.trt.failures import is_of_library
from plansmith.compilers.trt.layers import inspector_document, layers_above, layers_of, require_precision, summarise
from plansmith.compilers.trt.rtx import NAME, build_for, stand_in
from plansmith.errors import EngineError
from plansmith.records.engine import BuildCheck, CheckRequest


def check_graph(request: CheckRequest, progress: Callable[[str], None]) -> BuildCheck:
    """Check that a graph parses and builds; the result of the build is discarded.

    Args:
        request: the graph, and what decides the build.
        progress: told what is being done.

    Raises:
        EngineError: the parser or the builder refuses the graph or its profiles, or layers came out in FP32 although
            less was asked.
        EnvironmentFault: the library does not load, or there is not enough memory.
    """
    begun = time.monotonic()
    stand_in()
    watch, heard = Watch(progress, request.deadline_seconds), listen()
    size, reason = 0, ""
    try:
        with explained(f"{NAME} on {Path(request.graph).name}", watch, heard):
            size = memoryview(_plan(request, watch)).nbytes
    except EngineError as error:
        if not (watch.is_late or is_of_library(heard.text)):
            raise
        reason = error.message
    layers = layers_of(inspector_document(heard.layers)) if heard.layers and not reason else ()
    if layers:
        write_layers(layers, Path(request.out, LAYERS_FILE))
    untold = require_precision(layers, request.precision, request.in_fp32) if layers else ()
    return BuildCheck(
        library=NAME,
        compute_capabilities=request.compute_capabilities,
        in_place_of=request.in_place_of,
        precision=request.precision,
        verdict="unknown" if reason else "built",
        reason=reason,
        seconds=time.monotonic() - begun,
        bytes=size,
        layers=summarise(layers, layers_above(layers, request.precision)) if layers else None,
        layers_file=LAYERS_FILE if layers else "",
        warnings=(*warnings_of(heard), *untold),
    )


def _plan(request: CheckRequest, watch: Watch) -> Any:
    return serialized_plan(
        Path(request.graph), request.spec, watch, lambda config: build_for(config, request.compute_capabilities)
    )
