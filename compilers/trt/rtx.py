"""TensorRT-RTX, whose parser and builder need no GPU: its availability, and its use in place of TensorRT.

Its API is that of TensorRT 11.4, with the same names and integers, under a version of its own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from plansmith.errors import EnvironmentFault, first_line

VERSION = "1.7.1.116"
NAME = f"TensorRT-RTX {VERSION}"
API = "11.4.0.106"
"""The TensorRT whose API it has; Polygraphy goes by this number."""

DISTRIBUTIONS = ("tensorrt-rtx-cu12-bindings", "tensorrt-rtx-cu12-libs")
BINDINGS = "tensorrt_rtx_bindings"
INSTALL = "pip install 'plansmith[tensorrt-check]'"
REINSTALL = "pip install --force-reinstall 'plansmith[tensorrt-check]'"

# Of the compute capabilities that it builds for; 7.5, which lacks FP32 products in it, is left out.
_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0", "12.1")
_USUAL = "8.9"


def installed() -> str:
    """Return the installed version, or both if its parts differ; empty for none. Imports nothing."""
    try:
        return " and ".join(sorted({version(name) for name in DISTRIBUTIONS}))
    except PackageNotFoundError:
        return ""


def require_installed() -> None:
    """Require that it is installed, in the one version that checks support.

    Raises:
        EnvironmentFault: it is not.
    """
    version = installed()
    if not version:
        raise EnvironmentFault(
            f"check_build has the graph built by {NAME}, which is not installed",
            remedy=f"{INSTALL}, or leave out check_build",
        )
    if version != VERSION:
        raise EnvironmentFault(
            f"check_build is known for {NAME}, and {version} is installed",
            remedy=f"{INSTALL}, or leave out check_build",
        )


def nearest(compute_capability: str) -> str:
    """Return the compute capability that it builds for instead: the next lower one, or its lowest."""
    lower = [candidate for candidate in _CAPABILITIES if _number(candidate) <= _number(compute_capability)]
    return lower[-1] if lower else _CAPABILITIES[0]


def nearest_of(compute_capabilities: tuple[str, ...]) -> tuple[str, ...]:
    """As `nearest`, for several, each once; the default one if none is known."""
    return tuple(dict.fromkeys(map(nearest, compute_capabilities))) or (_USUAL,)


def stand_in() -> None:
    """Make `import tensorrt` load TensorRT-RTX in this process, which does nothing else.

    Raises:
        EnvironmentFault: it does not load.
    """
    try:
        bindings = importlib.import_module(BINDINGS)
    except (ImportError, OSError, RuntimeError) as error:
        raise EnvironmentFault(f"{NAME} does not load: {first_line(error)}", remedy=REINSTALL) from error
    module = ModuleType("tensorrt")
    vars(module).update({name: value for name, value in vars(bindings).items() if name[:2] != "__"})
    vars(module)["__version__"] = API
    sys.modules["tensorrt"] = module


def build_for(config: Any, compute_capabilities: Sequence[str]) -> None:
    """Set the GPU types to build for; without that, it looks for a GPU.

    Args:
        config: its `IBuilderConfig`; that of TensorRT has no such choice.
        compute_capabilities: such as "8.9".
    """
    kinds = importlib.import_module(BINDINGS).ComputeCapability
    config.num_compute_capabilities = len(compute_capabilities)
    for index, capability in enumerate(compute_capabilities):
        config.set_compute_capability(getattr(kinds, f"SM{capability.replace('.', '')}"), index)


def _number(compute_capability: str) -> tuple[int, ...]:
    return tuple(map(int, compute_capability.split(".")))
