"""Libraries of extras: whether they are installed, without importing them."""

from __future__ import annotations

from importlib.util import find_spec

from plansmith.errors import EnvironmentFault


def require_library(module: str, extra: str, *, purpose: str = "") -> None:
    """Require that a library is installed.

    Args:
        module: what is imported of it.
        extra: that installs it.
        purpose: what it is needed for, as the end of a sentence that begins with its name.

    Raises:
        EnvironmentFault: it is not installed.
    """
    if find_spec(module) is None:
        raise EnvironmentFault(
            f"{module} is not installed{f', and {purpose}' if purpose else ''}",
            remedy=f"pip install 'plansmith[{extra}]'",
        )
