"""TensorRT-RTX's real parser and builder in place of TensorRT: they need neither a GPU nor a driver.

Its API is that of TensorRT 11.4, with the same names and integers; what it builds is a plan for RTX alone. A build is
done in a process of its own, as the library may end its process: `python -m tests.support.tensorrt.rtx` reads a
`BuildRequest` as JSON on standard input and writes what came of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from plansmith.records.engine import BuildRequest
from plansmith.system.files import locked

VERSION = "1.7.1.116"
WHEELS = tuple(f"tensorrt-rtx-cu12{part}=={VERSION}" for part in ("", "-bindings", "-libs"))
_CACHE = Path(sys.prefix) / "tensorrt-rtx"
_LIKE = "11.4.0.106"
_SECONDS = 240


def fetched() -> Path:
    """The folder that has the library as `tensorrt`; fetched from the package index by the first who asks."""
    place = _CACHE / VERSION
    if place.is_dir():
        return place
    with locked(_CACHE / f"{VERSION}.lock"):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
                subprocess.run([*pip, *WHEELS], check=True, stdout=subprocess.DEVNULL)
                package = Path(folder, "tensorrt")
                package.mkdir()
                text = f'from tensorrt_rtx import *\n__version__ = "{_LIKE}"\n'
                (package / "__init__.py").write_text(text)
                Path(folder).rename(place)
                Path(folder).mkdir()  # which goes with the block
    return place


def build(request: BuildRequest) -> dict[str, Any]:
    """Have a plan built by the real library: `error`, `message` and `remedy` of what it ended with.

    The error of a process that the library ended is the signal, such as "signal 11".
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(fetched()), os.environ.get("PYTHONPATH", "")])},
        cwd=Path(__file__).parents[3],
        input=request.model_dump_json(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode < 0:
        return {"error": f"signal {-done.returncode}", "message": done.stderr, "remedy": ""}
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def main() -> None:
    """Build what standard input asks for."""
    from plansmith.compilers.trt.api.building import build as build_plan
    from plansmith.errors import PlansmithError

    try:
        build_plan(BuildRequest.model_validate_json(sys.stdin.read()), lambda _: None)
        found = {"error": "", "message": "", "remedy": ""}
    except PlansmithError as error:
        found = {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
