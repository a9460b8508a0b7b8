"""Python, plansmith itself, and the packages that its metadata says a compile needs."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Any

from plansmith import __version__
from plansmith.cli.doctor.children import Probed
from plansmith.cli.doctor.findings import Finding, Severity

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PYTHON_AREA = "Python"
COMPILE_AREA = "Packages for compiling"
COMPILE_EXTRA = "compile"
DATA_EXTRA = "data"
INSTALL = "pip install 'plansmith[compile]'"

# What is imported to see that it works. The others are Python alone, or (torchvision) imported by one of these.
IMPORTED = (
    "torch",
    "timm",
    "transformers",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "tritonclient",
    "huggingface_hub",
    "jinja2",
    "pyarrow",
)

_ABSENT = "not installed"
_IMPORTED = "imported"
_ALWAYS_NEEDED = {"jinja2"}  # of what plansmith always demands: the others are imported before there is a doctor
_NEEDED_FOR = {
    "jinja2": "the report in every release",
    "pyarrow": "data in .parquet, as most data sets of the hub are",
    "torchvision": "timm: models",
    "timm": "timm: models",
    "tritonclient": "the check on a running Triton",
}


def extra_requirements(extra: str) -> list[Requirement]:
    """What plansmith's installed metadata demands for an extra, and for those in it, beyond what it always demands.

    Raises:
        PackageNotFoundError: plansmith runs from a folder that was not installed.
    """
    from packaging.requirements import Requirement

    found = [Requirement(line) for line in requires("plansmith") or ()]
    wanted = [
        one
        for one in found
        if one.marker is not None and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    ]
    inner = [name for one in wanted if one.name == "plansmith" for name in sorted(one.extras)]
    return [
        *(one for name in inner for one in extra_requirements(name)),
        *(one for one in wanted if one.name != "plansmith"),
    ]


def own_requirements() -> list[Requirement]:
    """What plansmith always demands, as far as it is imported only where it is used.

    Raises:
        PackageNotFoundError: plansmith runs from a folder that was not installed.
    """
    from packaging.requirements import Requirement

    found = [Requirement(line) for line in requires("plansmith") or ()]
    return [one for one in found if one.marker is None and one.name in _ALWAYS_NEEDED]


def installed_version(distribution: str) -> str:
    """The version of an installed distribution, or nothing."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


NOT_IMPORTED = Finding(
    COMPILE_AREA, "imports", Severity.OPTIONAL, "not tried: plansmith doctor --deep does so, and starts Triton"
)


def stated(module: str) -> Probed | None:
    """What is known of a module without importing it, by the metadata of its distribution; None without any."""
    installed = installed_version(module.removesuffix("_server"))
    return Probed({"version": installed, _IMPORTED: False}) if installed else None


def is_imported(probe: Probed) -> bool:
    """Whether a module was imported, and not looked at from outside alone."""
    return bool((probe.facts or {}).get(_IMPORTED, True))


def python_findings() -> list[Finding]:
    """Python and plansmith."""
    return [
        Finding(PYTHON_AREA, "Python", Severity.OK, f"{platform.python_version()}, {sys.executable}"),
        plansmith_finding(installed_version("plansmith")),
    ]


def plansmith_finding(installed: str) -> Finding:
    """The metadata must be there, because it says what a compile needs."""
    if installed:
        return Finding(PYTHON_AREA, "plansmith", Severity.OK, __version__)
    found = f"{__version__}, but not installed as a package: what it needs is not known"
    return Finding(PYTHON_AREA, "plansmith", Severity.PROBLEM, found, "everything", INSTALL)


def package_findings(
    requirements: list[Requirement],
    versions: Mapping[str, str],
    probes: Mapping[str, Probed],
    *,
    extra: str = COMPILE_EXTRA,
) -> list[Finding]:
    """One finding for each package of an extra.

    Args:
        requirements: from `extra_requirements` or `own_requirements`.
        versions: of the installed distributions, by name; empty where there is none.
        probes: of those that were imported, by module.
        extra: which brings them; without those of any but "compile" a plain compile works.
    """
    found = [_package(one, versions[one.name], probes.get(_module(one.name)), extra) for one in requirements]
    return found if extra == COMPILE_EXTRA else [_less_grave(one) for one in found]


def unmet_by(extra: str, name: str, installed: str) -> str:
    """What a version lacks for an extra, in words; nothing where the metadata demands nothing of that name."""
    try:
        demanded = [one for one in extra_requirements(extra) if one.name == name]
    except PackageNotFoundError:
        return ""
    return next((lacking for one in demanded if (lacking := unmet(one, installed))), "")


def unmet(requirement: Requirement, installed: str) -> str:
    """What a version lacks, in words; a local part such as +cu132 and pre-releases count as what they are."""
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"needed is {_normal(str(requirement.specifier))}"


def _less_grave(finding: Finding) -> Finding:
    """The same of a package that not everybody needs."""
    if finding.severity is not Severity.PROBLEM:
        return finding
    absent = finding.found == _ABSENT
    return replace(finding, severity=Severity.OPTIONAL if absent else Severity.WARNING)


def _package(requirement: Requirement, installed: str, probe: Probed | None, extra: str) -> Finding:
    install = f"pip install 'plansmith[{extra}]'"
    name, needed_for = requirement.name, _NEEDED_FOR.get(requirement.name, "plansmith compile")
    facts = (probe and probe.facts) or {}
    if probe is not None and probe.broken:
        found = f"{installed}, does not work: {probe.broken}" if installed else f"does not work: {probe.broken}"
        return Finding(COMPILE_AREA, name, Severity.PROBLEM, found, needed_for, _with(install, "--force-reinstall"))
    told = str(facts.get("version") or installed)
    if not told or (probe is not None and probe.is_absent):
        return Finding(COMPILE_AREA, name, Severity.PROBLEM, _ABSENT, needed_for, install)
    imported = probe is None or is_imported(probe)
    lacking = unmet(requirement, told) or (_incapable(name, facts) if imported else "")
    if lacking:
        return Finding(
            COMPILE_AREA, name, Severity.PROBLEM, f"{told}; {lacking}", needed_for, _with(install, "--upgrade")
        )
    return Finding(COMPILE_AREA, name, Severity.OK, ", ".join([told, *(_abilities(name, facts) if imported else [])]))


def _with(install: str, option: str) -> str:
    return install.replace("pip install", f"pip install {option}")


def _incapable(name: str, facts: Mapping[str, Any]) -> str:
    if name == "onnxruntime" and "CPUExecutionProvider" not in facts.get("providers", ()):
        return "it has no CPU execution provider"
    if name == "transformers" and not facts.get("takes_torch"):
        return "it takes the installed torch for too old"
    return ""


def _abilities(name: str, facts: Mapping[str, Any]) -> list[str]:
    if name == "torch":
        usable = "a GPU is usable" if facts["cuda_usable"] else "no usable GPU"
        return [f"CUDA {facts['cuda_build']} build", usable] if facts["cuda_build"] else ["CPU build"]
    if name == "onnxruntime":
        return ["execution providers " + " ".join(p.removesuffix("ExecutionProvider") for p in facts["providers"])]
    return []


def _module(distribution: str) -> str:
    return distribution.replace("-", "_")


def _normal(specifier: str) -> str:
    """A specifier as a person writes it: the lower bound first."""
    return ", ".join(sorted(re.split(",", specifier), key=lambda part: not part.startswith(">")))
