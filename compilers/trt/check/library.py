"""TensorRT-RTX, whose parser and builder need no GPU: whether it is here, and how it stands in for TensorRT.

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
    """The version that is installed, or both where its parts differ; empty for none. Nothing is imported."""
    try:
        return " and ".join(sorted({version(name) for name in DISTRIBUTIONS}))
    except PackageNotFoundError:
        return ""


def require_installed() -> None:
    """See that it is here, in the one version that checks are known for.

    Raises:
        EnvironmentFault: it is not.
    """
    found = installed()
    if not found:
        raise EnvironmentFault(
            f"check_build has the graph built by {NAME}, which is not installed",
            remedy=f"{INSTALL}, or leave out check_build",
        )
    if found != VERSION:
        raise EnvironmentFault(
            f"check_build is known for {NAME}, and {found} is installed",
            remedy=f"{INSTALL}, or leave out check_build",
        )


def nearest(compute_capability: str) -> str:
    """The compute capability that it builds for in place of another: the next lower one, or its lowest."""
    lower = [one for one in _CAPABILITIES if _number(one) <= _number(compute_capability)]
    return lower[-1] if lower else _CAPABILITIES[0]


def nearest_of(compute_capabilities: tuple[str, ...]) -> tuple[str, ...]:
    """As `nearest`, of several, each once; the usual one where none is known."""
    return tuple(dict.fromkeys(map(nearest, compute_capabilities))) or (_USUAL,)


def stand_in() -> None:
    """Have `import tensorrt` give it in this process, which does nothing else.

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
    """Have it build for kinds of GPU; where it is not told, it looks for one.

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
