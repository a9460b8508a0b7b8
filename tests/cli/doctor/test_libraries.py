"""The packages of the compile extra are held against plansmith's own metadata."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from plansmith.cli.doctor.findings import Examination, Finding, Probed, Severity
from plansmith.cli.doctor.libraries import (
    package_findings,
    plansmith_finding,
    unmet_by,
)
from plansmith.system.libraries import extra_of, extra_requirements

TORCH = {"version": "2.15.0+cu132", "cuda_build": "13.2", "cuda_usable": False}


def package(requirement: str, installed: str, probe: Probed | None = None) -> Finding:
    required = Requirement(requirement)
    probes = {required.name.replace("-", "_"): probe} if probe is not None else {}
    (finding,) = package_findings([required], {required.name: installed}, probes)
    return finding


def test_extra_read_from_metadata() -> None:
    """The extra is read from the installed metadata."""
    names = {requirement.name for requirement in extra_requirements("compile")}
    assert {"torch", "onnxruntime", "tritonclient", "polygraphy"} <= names
    assert not names & {"click", "pydantic", "prefect", "pytest"}


def test_modules_lead_to_their_extra() -> None:
    """A module that is missing leads to the extra that installs it, by a requirement of its own or not."""
    found = {
        name: extra_of(name) for name in ("numpy", "huggingface_hub", "torch", "google", "botocore", "httpx", "os")
    }
    extras = ["client", "compile", "compile", "client", "s3", "flows", ""]
    assert list(found.values()) == extras


def test_extra_demands_only_named_packages() -> None:
    """An extra demands nothing of packages that it does not name."""
    assert unmet_by("compile", "onnxruntime", "1.0").startswith("needed is >=")
    assert unmet_by("compile", "onnxruntime", "99.0") == ""
    assert unmet_by("compile", "mlflow", "1.0") == ""


def test_missing_metadata_is_problem() -> None:
    """A plansmith without metadata is a problem."""
    assert plansmith_finding("0.1.0").severity is Severity.OK
    finding = plansmith_finding("")
    assert (finding.severity, finding.remedy) == (Severity.PROBLEM, "pip install 'plansmith[compile]'")


def test_missing_torch_names_extra() -> None:
    """A machine without torch is told to install the extra."""
    finding = package("torch>=2.9", "", Probed())
    assert (finding.severity, finding.found) == (Severity.PROBLEM, "not installed")
    assert finding.remedy == "pip install 'plansmith[compile]'"


def test_odd_versions_satisfy_minimum() -> None:
    """A local version and a later release candidate satisfy a minimum."""
    finding = package("torch>=2.9", "2.15.0", Probed(TORCH))
    assert (finding.severity, finding.found) == (Severity.OK, "2.15.0+cu132, CUDA 13.2 build, no usable GPU")
    assert package("safetensors>=0.5", "0.8.0rc1").severity is Severity.OK


def test_cpu_torch_told_apart() -> None:
    """The CPU build of torch is told apart."""
    finding = package("torch>=2.9", "2.9.0", Probed({"version": "2.9.0", "cuda_build": "", "cuda_usable": False}))
    assert finding.found == "2.9.0, CPU build"


def test_broken_pyarrow_is_warning() -> None:
    """Only those with Parquet data need pyarrow, and a broken one is a warning."""
    (required,) = extra_requirements("data")
    assert required.name == "pyarrow"

    def find(installed: str, probe: Probed) -> Finding:
        (finding,) = package_findings([required], {"pyarrow": installed}, {"pyarrow": probe}, extra="data")
        return finding

    absent, broken = find("", Probed()), find("17.0.0", Probed(broken="ImportError: numpy is too old"))
    assert (absent.severity, absent.found, absent.remedy) == (
        Severity.OPTIONAL,
        "not installed",
        "pip install 'plansmith[data]'",
    )
    assert (broken.severity, broken.remedy) == (
        Severity.WARNING,
        "pip install --force-reinstall 'plansmith[data]'",
    )
    old = find("1.0", Probed({"version": "1.0"}))
    assert (old.severity, old.remedy) == (Severity.WARNING, "pip install --upgrade 'plansmith[data]'")
    assert find("25.0", Probed({"version": "25.0"})).severity is Severity.OK


def test_missing_jinja2_is_problem() -> None:
    """A missing Jinja2 is a problem, as a compile could not write a report without it."""
    (required,) = [requirement for requirement in extra_requirements("compile") if requirement.name == "jinja2"]
    (finding,) = package_findings([required], {"jinja2": ""}, {"jinja2": Probed()})
    assert (finding.severity, finding.needed_for) == (Severity.PROBLEM, "the report in every release")


def test_old_onnxruntime_is_problem() -> None:
    """An old ONNX Runtime is a problem and says what is needed."""
    providers = ["CPUExecutionProvider"]
    finding = package("onnxruntime>=1.23,<2", "1.20.0", Probed({"version": "1.20.0", "providers": providers}))
    assert (finding.severity, finding.found) == (Severity.PROBLEM, "1.20.0; needed is >=1.23, <2")
    assert finding.remedy == "pip install --upgrade 'plansmith[compile]'"


def test_renamed_onnxruntime_counts() -> None:
    """ONNX Runtime under another distribution counts and shows its providers."""
    facts = {"version": "1.25.0", "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
    finding = package("onnxruntime>=1.23", "", Probed(facts))
    assert (finding.severity, finding.found) == (Severity.OK, "1.25.0, execution providers CUDA CPU")


def test_missing_cpu_provider_is_problem() -> None:
    """A runtime without the CPU provider is a problem."""
    finding = package("onnxruntime", "1.25.0", Probed({"version": "1.25.0", "providers": ["CUDAExecutionProvider"]}))
    assert finding.severity is Severity.PROBLEM
    assert "no CPU execution provider" in finding.found


def test_transformers_without_torch_is_problem() -> None:
    """A transformers package that puts torch aside is a problem."""
    finding = package("transformers>=5", "5.1.0", Probed({"version": "5.1.0", "takes_torch": False}))
    assert finding.severity is Severity.PROBLEM


def test_broken_package_says_why() -> None:
    """A broken package says why and is installed anew."""
    why = "RuntimeError: operator torchvision::nms does not exist"
    finding = package("timm>=1.0.20", "1.0.31", Probed(broken=why))
    assert (finding.severity, finding.found) == (Severity.PROBLEM, f"1.0.31, does not work: {why}")
    assert finding.remedy == "pip install --force-reinstall 'plansmith[compile]'"


@pytest.mark.parametrize(
    ("severity", "strict", "exit_code", "words"),
    [
        (Severity.OK, True, 0, "can compile"),
        (Severity.OPTIONAL, True, 0, "can compile"),
        (Severity.WARNING, False, 0, "with 1 warning"),
        (Severity.WARNING, True, 9, "with 1 warning"),
        (Severity.PROBLEM, False, 9, "not ready to compile: 1 problem."),
    ],
)
def test_exit_code_follows_worst_finding(severity: Severity, strict: bool, exit_code: int, words: str) -> None:
    """The exit code follows the worst finding."""
    examination = Examination([Finding("area", "name", severity, "found")], strict=strict)
    assert examination.exit_code == exit_code
    assert words in examination.verdict


def test_remedies_come_first_once() -> None:
    """Remedies of problems come first, and each only once."""
    findings = [
        Finding("a", "n", Severity.OPTIONAL, "", remedy="never"),
        Finding("a", "n", Severity.WARNING, "", remedy="later"),
        Finding("a", "n", Severity.PROBLEM, "", remedy="first"),
        Finding("a", "n", Severity.PROBLEM, "", remedy="first"),
    ]
    assert Examination(findings).commands == ["first", "later"]
