"""Whether TensorRT's Python API is here and can do anything on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from plansmith.errors import EnvironmentFault, first_line

# What pybind11 says where the library's factory gave nothing: TensorRT's `Builder` and `Runtime` without a GPU or a
# driver that fits it. The reason stands in the log only.
_NOTHING_MADE = "factory function returned nullptr"


def version() -> str:
    """The full version of TensorRT's Python package, such as "10.16.1.11".

    Raises:
        EnvironmentFault: it is not there, or its libraries are not.
    """
    try:
        import tensorrt
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: its libraries could not be fetched
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorrt":
            raise EnvironmentFault(
                "TensorRT's Python package is not here",
                remedy=f"install the target's version: {sys.executable} -m pip install tensorrt==<version>; or run in"
                " the target's image, or set tensorrt: builder: trtexec",
            ) from error
        raise EnvironmentFault(
            f"TensorRT's Python package does not load: {first_line(error)}",
            remedy="install TensorRT's libraries in the package's own version, or run in the target's image;"
            " plansmith doctor looks again",
        ) from error
    return str(tensorrt.__version__)


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
