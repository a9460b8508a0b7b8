"""The Triton server that releases are checked with."""

from __future__ import annotations

from pathlib import Path

from plansmith.cli.doctor.findings import Finding, Severity
from plansmith.config.target.targets import DEFAULT_TARGET, Target, load_target, require_onnxruntime
from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.system.temporary import scratch_folder
from plansmith.triton.server.installation import (
    Installation,
    dali_site,
    find_installation,
    python_library_folder,
    require_python,
    stand_in_site,
)
from plansmith.triton.server.server import TritonServer

AREA = "Triton"

_NEEDED_FOR = "the check on a running Triton, plansmith serve"


def serving_findings(installation: Installation | None, refusal: EnvironmentFault | None) -> list[Finding]:
    """The server and what it runs ONNX and PyTorch models with.

    Args:
        installation: the server, if there is one.
        refusal: why there is none.
    """
    if installation is None:
        assert refusal is not None
        remedy = refusal.remedy.replace("<target>", DEFAULT_TARGET)
        server = Finding(AREA, "server", Severity.PROBLEM, refusal.message, _NEEDED_FOR, remedy)
        return [server, _python_library_finding(needed=True)]
    stated = f"{installation.version or 'version not stated'}, {installation.binary}"
    brings_python = installation.stub is None or installation.backends in installation.stub.parents
    return [
        Finding(AREA, "server", Severity.OK, stated),
        _runtime_finding(installation),
        *_dali_findings(installation, load_target(DEFAULT_TARGET)),
        _pytorch_finding(installation),
        _python_library_finding(needed=not brings_python),
    ]


def look(*, deep: bool) -> list[Finding]:
    """The findings on the server that a compile would use.

    Args:
        deep: start it too.
    """
    try:
        installation = find_installation()
    except EnvironmentFault as refusal:
        return serving_findings(None, refusal)
    return [*serving_findings(installation, None), *([start_finding(installation)] if deep else [])]


def start_finding(installation: Installation) -> Finding:
    """Start the server on an empty repository, have it answer, and end it."""
    with scratch_folder("doctor") as scratch:
        repository = Path(scratch) / "repository"
        repository.mkdir()
        try:
            with TritonServer(repository, installation, Path(scratch) / "log", models=()) as server:
                return Finding(AREA, "start", Severity.OK, f"Triton {server.version} started, answered and ended")
        except PlansmithError as error:
            said = " ".join(error.message.split())
            remedy = "correct what it names; plansmith serve keeps all that Triton says in a log"
            return Finding(AREA, "start", Severity.PROBLEM, said, _NEEDED_FOR, remedy)


def _python_library_finding(*, needed: bool) -> Finding:
    """Python's shared library, which the private folder's Triton runs Python models with."""
    name = "Python library"
    try:
        return Finding(AREA, name, Severity.OK, str(python_library_folder()))
    except EnvironmentFault as error:
        severity = Severity.PROBLEM if needed else Severity.OPTIONAL
        return Finding(AREA, name, severity, error.message, "the Triton of plansmith serve-env", error.remedy)


def _runtime_finding(installation: Installation) -> Finding:
    name = "ONNX Runtime"
    if installation.real_onnxruntime:
        return Finding(AREA, name, Severity.OK, "Triton's own backend")
    target = load_target(DEFAULT_TARGET)
    if installation.stub is None:
        found = "the server has neither an ONNX Runtime backend nor a Python stub for this Python"
        remedy = f"unset PLANSMITH_TRITONSERVER, then plansmith serve-env add {target.name}"
        return Finding(AREA, name, Severity.PROBLEM, found, _NEEDED_FOR, remedy)
    try:
        stand_in_site(installation, target)
    except EnvironmentFault as error:
        return Finding(AREA, name, Severity.PROBLEM, error.message, _NEEDED_FOR, error.remedy)
    version = require_onnxruntime(target).version
    return Finding(AREA, name, Severity.OK, f"{version} in a stand-in backend, for target {target.name}")


def _dali_findings(installation: Installation, target: Target) -> list[Finding]:
    """What runs DALI pipelines; nothing where the target names no DALI and the server has none."""
    name, needed_for = "DALI", "preprocessing: dali in a spec"
    if installation.real_dali:
        return [Finding(AREA, name, Severity.OK, "Triton's own backend")]
    if target.dali is None:
        return []
    try:
        dali_site(installation, target)
    except EnvironmentFault as error:
        return [Finding(AREA, name, Severity.OPTIONAL, error.message, needed_for, error.remedy)]
    return [Finding(AREA, name, Severity.OK, f"{target.dali} in a stand-in backend, for target {target.name}")]


def _pytorch_finding(installation: Installation) -> Finding:
    """What runs the models of engine python."""
    name = "PyTorch models"
    try:
        require_python(installation)
    except EnvironmentFault as error:
        return Finding(AREA, name, Severity.OPTIONAL, error.message, "engine python", error.remedy)
    own = installation.lends_python
    found = "this environment's packages, with a NumPy 1 before them" if own else "the packages of the server's Python"
    return Finding(AREA, name, Severity.OK, found)
