"""What SageMaker's front end of Triton does not start with, or serves otherwise than was meant, is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plansmith.config.targets import load_target
from plansmith.errors import RepositoryError
from plansmith.triton.checker.checker import check_repository

from ....support.checker.backend_rules import broken, findings
from ....support.tensorrt.plan_files import plan
from .test_ensemble_rules import EMPTY, MODEL, ONE, ensemble_of

if TYPE_CHECKING:
    from ....support.checker.written import Written

SPACED = 'platform : "ensemble"'


def single(written: Written, name: str = "m", config: str = ONE) -> None:
    written.add(name, config, {"1/model.py": MODEL})


def test_one_model_is_passed(written: Written) -> None:
    single(written, "a-b_1.2")
    assert broken(written.root, sagemaker=True) == set()
    assert broken(written.root, target=load_target("sagemaker-26.05")) == set()


def test_several_models_need_one_name(written: Written) -> None:
    """R21."""
    single(written)
    written.add("both", ensemble_of("m", "m"), EMPTY)
    (finding,) = findings(written.root, sagemaker=True)
    assert (finding.rule, finding.severity) == ("sagemaker.default-model", "warning")
    assert finding.remedy == "set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=both in the endpoint's environment"
    assert findings(written.root) == []


def test_default_model_among_several_ensembles(written: Written) -> None:
    """It is the one that no other asks; an archive of both is none for a multi-model endpoint."""
    single(written)
    written.add("inner", ensemble_of("m", "m"), EMPTY)
    written.add("outer", ensemble_of("inner", "m"), EMPTY)
    remedies = {finding.rule: finding.remedy for finding in findings(written.root, sagemaker=True)}
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=outer " in remedies["sagemaker.default-model"]
    assert remedies["sagemaker.ensemble"] == "make an archive for each ensemble"


def test_several_models_need_ensemble(written: Written) -> None:
    """Several models without an ensemble are no multi-model archive."""
    single(written)
    single(written, "n")
    assert broken(written.root, sagemaker=True) == {"sagemaker.default-model", "sagemaker.ensemble"}
    assert {finding.place for finding in findings(written.root, sagemaker=True)} == {"."}


@pytest.mark.parametrize("platform", [SPACED, "platform: 'ensemble'"])
def test_unseen_ensemble_found(platform: str, written: Written) -> None:
    """An ensemble that the front end does not see as one is found."""
    single(written)
    written.add("both", ensemble_of("m", "m").replace('platform: "ensemble"', platform), EMPTY)
    (finding,) = [item for item in findings(written.root, sagemaker=True) if item.rule == "sagemaker.ensemble"]
    assert finding.model == "both"
    assert 'platform: "ensemble"' in finding.remedy


def test_six_models_are_noted(written: Written) -> None:
    """More than five models are noted."""
    for number in range(5):
        single(written, f"m{number}")
    written.add("both", ensemble_of("m0", "m1"), EMPTY)
    assert broken(written.root, sagemaker=True) == {"sagemaker.default-model", "sagemaker.many-models"}


def test_root_configuration_is_no_layout(written: Written) -> None:
    """R21."""
    single(written)
    (written.root / "config.pbtxt").write_text(ONE)
    (finding,) = findings(written.root, sagemaker=True)
    assert (finding.rule, finding.place) == ("sagemaker.layout", "config.pbtxt")


@pytest.mark.parametrize("place", ["config.pbtxt", "1"])
def test_model_folder_is_no_archive(place: str, written: Written) -> None:
    """R21."""
    config = ONE if place == "config.pbtxt" else None
    folder = written.add("m", config, {"1/model.py": MODEL})
    (finding,) = check_repository(folder, sagemaker=True)
    assert (finding.rule, finding.place) == ("sagemaker.layout", place)
    with pytest.raises(RepositoryError, match="the folder of one model"):
        check_repository(folder)


def test_number_named_model_accepted(written: Written) -> None:
    """A model that is named by a number is a model."""
    written.add("1", None, {"1/model.py": MODEL})
    assert broken(written.root, sagemaker=True) == set()


def test_folder_around_models_refused(written: Written) -> None:
    """R21."""
    single(written, "repository/m")
    (finding,) = findings(written.root, sagemaker=True)
    assert (finding.rule, finding.place) == ("sagemaker.layout", "repository")
    assert "tar -C repository" in finding.remedy


@pytest.mark.parametrize("name", ["code", ".ipynb_checkpoints"])
def test_non_model_counts_for_start_script(name: str, written: Written) -> None:
    """A folder that is no model counts as one to the start script."""
    single(written)
    written.add(name, None, {"inference.py": "x"})
    (finding,) = findings(written.root, sagemaker=True)
    assert (finding.rule, finding.place) == ("sagemaker.stray-folder", name)


@pytest.mark.parametrize(
    ("name", "rules"), [("my model", {"sagemaker.name"}), ("m*", {"sagemaker.name"}), ("a-b_1.2", set())]
)
def test_shell_unsafe_name_found(name: str, rules: set[str], written: Written) -> None:
    """A name that a shell reads otherwise is found."""
    single(written, name)
    assert broken(written.root, sagemaker=True) == rules


@pytest.mark.parametrize(("version", "rules"), [("11.0.0.114", {"sagemaker.tensorrt"}), ("10.16.1.11", set())])
def test_tensorrt_11_plan_has_no_container(version: str, rules: set[str], written: Written) -> None:
    """A plan of TensorRT 11 has no container there."""
    written.add("m", 'backend: "tensorrt"', {"1/model.plan": plan(version)})
    assert broken(written.root, sagemaker=True) == rules


def test_a_decoupled_model_is_doubtful(written: Written) -> None:
    single(written, config=ONE + "model_transaction_policy { decoupled: true }\n")
    (finding,) = findings(written.root, sagemaker=True)
    assert (finding.rule, finding.severity, finding.line) == ("sagemaker.decoupled", "warning", 3)


def test_other_targets_exempt(written: Written) -> None:
    """Nothing of this is asked of others."""
    single(written, "my model", ONE + "model_transaction_policy { decoupled: true }\n")
    single(written, "n")
    assert broken(written.root) == set()
