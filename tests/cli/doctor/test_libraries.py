"""The packages of the compile extra are held against plansmith's own metadata."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from plansmith.cli.doctor.children import Probed
from plansmith.cli.doctor.findings import Examination, Finding, Severity
from plansmith.cli.doctor.libraries import (
    extra_requirements,
    own_requirements,
    package_findings,
    plansmith_finding,
    unmet_by,
)

TORCH = {"version": "2.15.0+cu132", "cuda_build": "13.2", "cuda_usable": False}


def package(requirement: str, installed: str, probe: Probed | None = None) -> Finding:
    required = Requirement(requirement)
    probes = {required.name.replace("-", "_"): probe} if probe is not None else {}
    (found,) = package_findings([required], {required.name: installed}, probes)
    return found


def test_the_extra_is_read_from_the_installed_metadata() -> None:
    names = {requirement.name for requirement in extra_requirements("compile")}
    assert {"torch", "onnxruntime", "tritonclient", "polygraphy"} <= names
    assert not names & {"click", "pydantic", "prefect", "pytest"}


def test_an_extra_demands_nothing_of_what_it_does_not_name() -> None:
    assert unmet_by("compile", "onnxruntime", "1.0").startswith("needed is >=")
    assert unmet_by("compile", "onnxruntime", "99.0") == ""
    assert unmet_by("compile", "mlflow", "1.0") == ""


def test_plansmith_without_metadata_is_a_problem() -> None:
    assert plansmith_finding("0.1.0").severity is Severity.OK
    found = plansmith_finding("")
    assert (found.severity, found.remedy) == (Severity.PROBLEM, "pip install 'plansmith[compile]'")


def test_a_machine_without_torch_is_told_to_install_the_extra() -> None:
    found = package("torch>=2.9", "", Probed())
    assert (found.severity, found.found) == (Severity.PROBLEM, "not installed")
    assert found.remedy == "pip install 'plansmith[compile]'"


def test_a_local_version_and_a_later_release_candidate_satisfy_a_minimum() -> None:
    found = package("torch>=2.9", "2.15.0", Probed(TORCH))
    assert (found.severity, found.found) == (Severity.OK, "2.15.0+cu132, CUDA 13.2 build, no usable GPU")
    assert package("safetensors>=0.5", "0.8.0rc1").severity is Severity.OK


def test_the_cpu_build_of_torch_is_told_apart() -> None:
    found = package("torch>=2.9", "2.9.0", Probed({"version": "2.9.0", "cuda_build": "", "cuda_usable": False}))
    assert found.found == "2.9.0, CPU build"


def test_data_in_parquet_is_for_those_who_have_such_and_a_broken_pyarrow_is_a_warning() -> None:
    (required,) = extra_requirements("data")
    assert required.name == "pyarrow"

    def found(installed: str, probe: Probed) -> Finding:
        (one,) = package_findings([required], {"pyarrow": installed}, {"pyarrow": probe}, extra="data")
        return one

    absent, broken = found("", Probed()), found("17.0.0", Probed(broken="ImportError: numpy is too old"))
    assert (absent.severity, absent.found, absent.remedy) == (
        Severity.OPTIONAL,
        "not installed",
        "pip install 'plansmith[data]'",
    )
    assert (broken.severity, broken.remedy) == (
        Severity.WARNING,
        "pip install --force-reinstall 'plansmith[data]'",
    )
    old = found("1.0", Probed({"version": "1.0"}))
    assert (old.severity, old.remedy) == (Severity.WARNING, "pip install --upgrade 'plansmith[data]'")
    assert found("25.0", Probed({"version": "25.0"})).severity is Severity.OK


def test_a_compile_without_jinja2_could_write_no_report_which_is_a_problem() -> None:
    (required,) = own_requirements()
    assert required.name == "jinja2"
    (found,) = package_findings([required], {"jinja2": ""}, {"jinja2": Probed()})
    assert (found.severity, found.needed_for) == (Severity.PROBLEM, "the report in every release")


def test_an_old_onnxruntime_is_a_problem_and_says_what_is_needed() -> None:
    providers = ["CPUExecutionProvider"]
    found = package("onnxruntime>=1.23,<2", "1.20.0", Probed({"version": "1.20.0", "providers": providers}))
    assert (found.severity, found.found) == (Severity.PROBLEM, "1.20.0; needed is >=1.23, <2")
    assert found.remedy == "pip install --upgrade 'plansmith[compile]'"


def test_onnxruntime_under_another_distribution_counts_and_shows_its_providers() -> None:
    facts = {"version": "1.25.0", "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
    found = package("onnxruntime>=1.23", "", Probed(facts))
    assert (found.severity, found.found) == (Severity.OK, "1.25.0, execution providers CUDA CPU")


def test_a_runtime_without_the_cpu_provider_is_a_problem() -> None:
    found = package("onnxruntime", "1.25.0", Probed({"version": "1.25.0", "providers": ["CUDAExecutionProvider"]}))
    assert found.severity is Severity.PROBLEM
    assert "no CPU execution provider" in found.found


def test_transformers_that_puts_torch_aside_is_a_problem() -> None:
    found = package("transformers>=5", "5.1.0", Probed({"version": "5.1.0", "takes_torch": False}))
    assert found.severity is Severity.PROBLEM


def test_a_broken_package_says_why_and_is_installed_anew() -> None:
    why = "RuntimeError: operator torchvision::nms does not exist"
    found = package("timm>=1.0.20", "1.0.31", Probed(broken=why))
    assert (found.severity, found.found) == (Severity.PROBLEM, f"1.0.31, does not work: {why}")
    assert found.remedy == "pip install --force-reinstall 'plansmith[compile]'"


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
def test_the_exit_code_follows_the_worst_finding(severity: Severity, strict: bool, exit_code: int, words: str) -> None:
    examination = Examination([Finding("area", "name", severity, "found")], strict=strict)
    assert examination.exit_code == exit_code
    assert words in examination.verdict


def test_remedies_of_problems_come_first_and_each_only_once() -> None:
    findings = [
        Finding("a", "n", Severity.OPTIONAL, "", remedy="never"),
        Finding("a", "n", Severity.WARNING, "", remedy="later"),
        Finding("a", "n", Severity.PROBLEM, "", remedy="first"),
        Finding("a", "n", Severity.PROBLEM, "", remedy="first"),
    ]
    assert Examination(findings).commands == ["first", "later"]
