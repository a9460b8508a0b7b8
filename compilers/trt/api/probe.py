"""Whether TensorRT's Python API is here and can do anything on this machine."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from plansmith.errors import EnvironmentFault, first_line

_BINDINGS = "tensorrt_bindings"

# What pybind11 says where the library's factory gave nothing: TensorRT's `Builder` and `Runtime` without a GPU or a
# driver that fits it. The reason stands in the log only.
_NOTHING_MADE = "factory function returned nullptr"


def version() -> str:
    """The full version of TensorRT's Python package, such as "10.16.1.11"; from here on it can be imported.

    Where the libraries are, as in Triton's image, and the package is not, its bindings alone will do
    (tensorrt-cu12-bindings, tensorrt-cu13-bindings): the package's module holds nothing but what is imported from them.

    Raises:
        EnvironmentFault: it is not there, or its libraries are not.
    """
    try:
        if _has_bindings_alone():
            sys.modules["tensorrt"] = importlib.import_module(_BINDINGS)
        import tensorrt
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: its libraries could not be fetched
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorrt":
            raise EnvironmentFault(
                "TensorRT's Python package is not here",
                remedy=f"install the target's version: {sys.executable} -m pip install tensorrt==<version>; in Triton's"
                " image, which has the libraries, tensorrt-cu13-bindings==<version> (before 25.08: cu12)",
            ) from error
        raise EnvironmentFault(
            f"TensorRT's Python package does not load: {first_line(error)}",
            remedy="install TensorRT's libraries in the package's own version, or run in the target's image;"
            " plansmith doctor looks again",
        ) from error
    return str(tensorrt.__version__)


def _has_bindings_alone() -> bool:
    if "tensorrt" in sys.modules or importlib.util.find_spec("tensorrt") is not None:
        return False
    return importlib.util.find_spec(_BINDINGS) is not None


@contextmanager
def gpu_needed() -> Iterator[None]:
    """Say what it means when TensorRT cannot make the object that everything begins with.

    Raises:
        EnvironmentFault: there is no usable GPU or driver.
    """
    try:
        yield
    except TypeError as error:
        if _NOTHING_MADE not in str(error):
            raise
        raise EnvironmentFault(
            f"TensorRT {version()} finds no usable GPU or driver on this machine",
            remedy="look at nvidia-smi: a GPU must be there and visible (CUDA_VISIBLE_DEVICES), and its driver new"
            " enough for this TensorRT; plansmith doctor tells what is here",
        ) from error
