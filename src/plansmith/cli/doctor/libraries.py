"""Library checks: Python, plansmith itself, and the packages that its metadata requires for a compile."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from plansmith import __version__
from plansmith.cli.doctor.findings import Finding, Probed, Severity
from plansmith.system.libraries import extra_requirements

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
_NEEDED_FOR = {
    "cyclonedx-python-lib": "the bill of materials in every release",
    "in-toto-attestation": "the provenance in every release",
    "jinja2": "the report in every release",
    "pyarrow": "data in .parquet, as most data sets of the hub are",
    "torchvision": "timm: models",
    "timm": "timm: models",
    "tritonclient": "the check on a running Triton",
    "uv": "python: {environment: packed}",
}

NOT_IMPORTED = Finding(
    COMPILE_AREA, "imports", Severity.OPTIONAL, "not tried: plansmith doctor --deep does so, and starts Triton"
)


def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def stated(module: str) -> Probed | None:
    """Return what a distribution's metadata says of a module, without importing it; None without metadata."""
    installed = installed_version(module.removesuffix("_server"))
    return Probed({"version": installed, _IMPORTED: False}) if installed else None


def is_imported(probe: Probed) -> bool:
    """Whether a module was imported rather than inspected from outside."""
    return bool((probe.facts or {}).get(_IMPORTED, True))


def python_findings() -> list[Finding]:
    """Check Python and plansmith."""
    return [
        Finding(PYTHON_AREA, "Python", Severity.OK, f"{platform.python_version()}, {sys.executable}"),
        plansmith_finding(installed_version("plansmith")),
    ]


def plansmith_finding(installed: str) -> Finding:
    """Check plansmith's metadata, which lists the requirements of a compile."""
    if installed:
        return Finding(PYTHON_AREA, "plansmith", Severity.OK, __version__)
    detail = f"{__version__}, but not installed as a package: what it needs is not known"
    return Finding(PYTHON_AREA, "plansmith", Severity.PROBLEM, detail, "everything", INSTALL)


def package_findings(
    requirements: list[Requirement],
    versions: Mapping[str, str],
    probes: Mapping[str, Probed],
    *,
    extra: str = COMPILE_EXTRA,
) -> list[Finding]:
    """Check each package of an extra; one finding per package.

    Args:
        requirements: from `extra_requirements`.
        versions: of the installed distributions, by name; empty where there is none.
        probes: of those that were imported, by module.
        extra: which brings them; without those of any but "compile" a plain compile works.
    """
    findings = [_package(item, versions[item.name], probes.get(_module(item.name)), extra) for item in requirements]
    return findings if extra == COMPILE_EXTRA else [_less_grave(item) for item in findings]


def unmet_by(extra: str, name: str, installed: str) -> str:
    """Describe how a version fails an extra's requirements; empty if the metadata has none for that name."""
    try:
        demanded = [requirement for requirement in extra_requirements(extra) if requirement.name == name]
    except PackageNotFoundError:
        return ""
    return next((lacking for requirement in demanded if (lacking := unmet(requirement, installed))), "")


def unmet(requirement: Requirement, installed: str) -> str:
    """Describe how a version fails requirements; local parts such as +cu132 and pre-releases are taken into account."""
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"needed is {_normal(str(requirement.specifier))}"


def _less_grave(finding: Finding) -> Finding:
    """Return the finding with a lower severity, for a package that not every user needs."""
    if finding.severity is not Severity.PROBLEM:
        return finding
    absent = finding.found == _ABSENT
    return replace(finding, severity=Severity.OPTIONAL if absent else Severity.WARNING)


def _package(requirement: Requirement, installed: str, probe: Probed | None, extra: str) -> Finding:
    install = f"pip install 'plansmith[{extra}]'"
    name, needed_for = requirement.name, _NEEDED_FOR.get(requirement.name, "plansmith compile")
    facts = (probe and probe.facts) or {}
    if probe is not None and probe.broken:
        detail = f"{installed}, does not work: {probe.broken}" if installed else f"does not work: {probe.broken}"
        return Finding(COMPILE_AREA, name, Severity.PROBLEM, detail, needed_for, _with(install, "--force-reinstall"))
    version = str(facts.get("version") or installed)
    if not version or (probe is not None and probe.is_absent):
        return Finding(COMPILE_AREA, name, Severity.PROBLEM, _ABSENT, needed_for, install)
    imported = probe is None or is_imported(probe)
    lacking = unmet(requirement, version) or (_incapable(name, facts) if imported else "")
    if lacking:
        return Finding(
            COMPILE_AREA, name, Severity.PROBLEM, f"{version}; {lacking}", needed_for, _with(install, "--upgrade")
        )
    return Finding(
        COMPILE_AREA, name, Severity.OK, ", ".join([version, *(_abilities(name, facts) if imported else [])])
    )


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
    """Format a version specifier in the usual order: the lower bound first."""
    return ", ".join(sorted(re.split(",", specifier), key=lambda part: not part.startswith(">")))
