"""Libraries of extras: which extra installs them, and whether they are installed, without importing them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from plansmith.errors import EnvironmentFault

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_INSTALLED_BY = {
    "botocore": "boto3",
    "cyclonedx": "cyclonedx-python-lib",
    "google": "tritonclient",
    "httpx": "prefect",
    "packageurl": "cyclonedx-python-lib",
}
"""Modules that no extra names, by the requirement that installs them."""


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
            f"this needs plansmith[{extra}]: {module} is not installed{f', and {purpose}' if purpose else ''}",
            remedy=f"pip install 'plansmith[{extra}]'",
        )


def extra_of(module: str) -> str:
    """Return the first extra in plansmith's metadata that installs a top-level module; empty if there is none."""
    from importlib.metadata import PackageNotFoundError, metadata

    name = _INSTALLED_BY.get(module, module).replace("_", "-")
    try:
        extras = metadata("plansmith").get_all("Provides-Extra") or []
        return next((e for e in extras if any(item.name == name for item in extra_requirements(e))), "")
    except PackageNotFoundError:
        return ""


def extra_requirements(extra: str) -> list[Requirement]:
    """Return the requirements of an extra and its nested extras in plansmith's metadata, beyond the base requirements.

    Raises:
        PackageNotFoundError: plansmith runs from a folder that was not installed.
    """
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    found = [Requirement(line) for line in requires("plansmith") or ()]
    extra_only = [
        requirement
        for requirement in found
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
    ]
    inner = [
        name for requirement in extra_only if requirement.name == "plansmith" for name in sorted(requirement.extras)
    ]
    return [
        *(requirement for name in inner for requirement in extra_requirements(name)),
        *(requirement for requirement in extra_only if requirement.name != "plansmith"),
    ]
