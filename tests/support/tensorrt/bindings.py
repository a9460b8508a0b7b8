"""TensorRT's real Python bindings, of several versions, without TensorRT's libraries.

The wheels of the bindings stand on the package index; the libraries that they link do not. Nine functions of those
are all that the bindings need to be imported, so that a library which has these, and which gives 0 for each, does:
all classes, enumerations and signatures are the real ones then. Making a builder fails in the very way in which it
fails with TensorRT's libraries on a machine without a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType

from plansmith.system.files import locked

WHEELS = {
    "10.12": "tensorrt-cu12-bindings==10.12.0.36",
    "10.16": "tensorrt-cu13-bindings==10.16.1.11",
    "11.0": "tensorrt-cu13-bindings==11.0.0.114",
    "11.4": "tensorrt-cu13-bindings==11.4.0.106",
}
VARIABLE = "PLANSMITH_TENSORRT_BINDINGS"
_CACHE = Path(sys.prefix) / "tensorrt-bindings"
_LIBRARIES_OF_THE_SYSTEM = re.compile(r"GLIBC|GCC|CXXABI")


def fetched(version: str) -> Path:
    """The folder that holds the unpacked wheel of a version; fetched by the first who asks."""
    place = _CACHE / WHEELS[version].rpartition("==")[2]
    if place.is_dir():
        return place
    with locked(_CACHE / f"{version}.lock"):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
                pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
                subprocess.run([*pip, "--dest", folder, WHEELS[version]], check=True, stdout=subprocess.DEVNULL)
                (wheel,) = Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(Path(folder, "unpacked"))
                Path(folder, "unpacked").rename(place)
    return place


def load(place: Path) -> ModuleType:
    """Import the bindings of a folder as `tensorrt`, once per process."""
    library = place / "tensorrt_bindings" / "tensorrt.so"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "stub.c")
        source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in _undefined(library)))
        for needed in _missing(library):
            stub = Path(folder, needed)
            build = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{needed}", "-o", str(stub), str(source)]
            subprocess.run(build, check=True)
            ctypes.CDLL(str(stub), ctypes.RTLD_GLOBAL)  # the loader finds it by this name from now on
        sys.path.insert(0, str(place))
        module = importlib.import_module("tensorrt_bindings")
    sys.modules["tensorrt"] = module
    return module


def _missing(library: Path) -> list[str]:
    names = re.findall(r"\(NEEDED\).*\[(.+?)\]", _output("readelf", "-dW", str(library)))
    return [name for name in names if name.startswith("libnv")]


def _undefined(library: Path) -> list[str]:
    """The functions that neither Python nor the system has."""
    process, names = ctypes.CDLL(None), []
    for line in _output("nm", "-D", "--undefined-only", str(library)).splitlines():
        kind, name = line.split()[-2:]
        name, _, version = name.partition("@")
        if kind == "U" and not _LIBRARIES_OF_THE_SYSTEM.match(version.lstrip("@")) and not hasattr(process, name):
            names.append(name)
    return names


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def surface(module: ModuleType) -> set[str]:
    """Every name in the bindings, however deep, but for Python's own."""
    names: set[str] = set()
    left: list[object] = [module]
    while left:
        for name, value in vars(left.pop()).items():
            if not name.startswith("__"):
                names.add(name)
                if inspect.isclass(value) and value.__module__.startswith("tensorrt_bindings"):
                    left.append(value)
    return names


def in_child(version: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the bindings of a version, which are loaded by whoever asks `VARIABLE`."""
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, VARIABLE: str(fetched(version)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    print(json.dumps(sorted(surface(load(Path(os.environ[VARIABLE]))))))
