"""How to build a plan again by hand: the request as JSON, and a script that needs the builder and little more."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from plansmith.records.engine import BuildRequest, Plan

REQUEST_FILE = "request.json"
SCRIPT_FILE = "reproduce.sh"

_SCRIPT = """\
#!/bin/sh
# Builds the plan beside this file again: with TensorRT {tensorrt}, on a GPU of the same kind ({gpu}).
#
#   sh {name} [graph.onnx] [folder] [timing cache]
#
# graph.onnx: the lowered graph, with its weights beside it; where it was at the build when left out.
# folder: takes the new model.plan; ./rebuilt when left out.
# timing cache: a file to start from and to write back to; a new one in the folder when left out.
# {needs}
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
graph=${{1:-{graph}}}
out=${{2:-./rebuilt}}
cache=${{3:-$out/timing.cache}}
if [ ! -f "$graph" ]; then
  echo "there is no graph $graph; give its path: $0 graph.onnx" >&2
  exit 2
fi
mkdir -p -- "$out"
{command}
"""


def write_reproduction(
    folder: Path, request: BuildRequest, plan: Plan, command: Sequence[str], *, timing_cache: str
) -> None:
    """Write `request.json` and `reproduce.sh` beside a plan.

    Args:
        folder: takes them.
        request: what was asked for; its folder and timing cache, which others take the place of, are left out.
        plan: what was built.
        command: of the program that built it; empty for TensorRT's Python API.
        timing_cache: the file that the build used; empty for none.
    """
    kept = request.model_copy(update={"out": "", "timing_cache": ""})
    (folder / REQUEST_FILE).write_text(f"{kept.model_dump_json(indent=1)}\n")
    if command:
        needs = (
            f"Set TRTEXEC where the program is not {command[0]}, CUDA_VISIBLE_DEVICES where not the first GPU is meant."
        )
        places = {request.out: "$out", request.graph: "$graph", timing_cache: "$cache"}
        lines = _lines_by_program(command, {path: name for path, name in places.items() if path})
    else:
        needs = (
            "Set PYTHON to one that has plansmith and TensorRT, CUDA_VISIBLE_DEVICES where not all GPUs may be used."
        )
        lines = _lines_by_api(with_cache=bool(timing_cache))
    script = folder / SCRIPT_FILE
    script.write_text(
        _SCRIPT.format(
            tensorrt=plan.tensorrt,
            gpu=_in_one_line(f"{request.gpu.name}, compute capability {request.gpu.compute_capability}"),
            name=SCRIPT_FILE,
            needs=_in_one_line(needs),
            graph=shlex.quote(request.graph),
            command=lines,
        )
    )
    script.chmod(0o755)


def _lines_by_api(*, with_cache: bool) -> str:
    options = ['--request "$here/request.json"', '--graph "$graph"', '--out "$out"']
    if with_cache:
        options.append('--timing-cache "$cache"')
    return " \\\n  ".join(['exec "${PYTHON:-python3}" -m plansmith.compilers.trt.build_worker', *options])


def _lines_by_program(command: Sequence[str], places: Mapping[str, str]) -> str:
    options = [_quoted(option, places) for option in command[1:]]
    return f"trtexec=${{TRTEXEC:-{shlex.quote(command[0])}}}\n" + " \\\n  ".join(['exec "$trtexec"', *options])


def _quoted(option: str, places: Mapping[str, str]) -> str:
    """An argument as the shell takes it, with variables for the paths in it."""
    paths = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))
    parts = re.split(f"({paths})", option)
    return "".join(f'"{places[part]}"' if part in places else shlex.quote(part) for part in parts if part)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
