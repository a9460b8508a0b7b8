"""What SageMaker's front end of Triton does not start with, or serves otherwise than was meant, is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plansmith.config.target.targets import load_target
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


def test_several_models_need_the_name_of_one(written: Written) -> None:
    """R21."""
    single(written)
    written.add("both", ensemble_of("m", "m"), EMPTY)
    (found,) = findings(written.root, sagemaker=True)
    assert (found.rule, found.severity) == ("sagemaker.default-model", "warning")
    assert found.remedy == "set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=both in the endpoint's environment"
    assert findings(written.root) == []


def test_default_model_among_several_ensembles(written: Written) -> None:
    """It is the one that no other asks; an archive of both is none for a multi-model endpoint."""
    single(written)
    written.add("inner", ensemble_of("m", "m"), EMPTY)
    written.add("outer", ensemble_of("inner", "m"), EMPTY)
    remedies = {found.rule: found.remedy for found in findings(written.root, sagemaker=True)}
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=outer " in remedies["sagemaker.default-model"]
    assert remedies["sagemaker.ensemble"] == "make an archive for each ensemble"


def test_several_models_without_an_ensemble_are_no_archive_of_many(written: Written) -> None:
    single(written)
    single(written, "n")
    assert broken(written.root, sagemaker=True) == {"sagemaker.default-model", "sagemaker.ensemble"}
    assert {one.place for one in findings(written.root, sagemaker=True)} == {"."}


@pytest.mark.parametrize("platform", [SPACED, "platform: 'ensemble'"])
def test_an_ensemble_that_the_front_end_does_not_see_as_one_is_found(platform: str, written: Written) -> None:
    single(written)
    written.add("both", ensemble_of("m", "m").replace('platform: "ensemble"', platform), EMPTY)
    (found,) = [one for one in findings(written.root, sagemaker=True) if one.rule == "sagemaker.ensemble"]
    assert found.model == "both"
    assert 'platform: "ensemble"' in found.remedy


def test_more_than_five_models_are_noted(written: Written) -> None:
    for number in range(5):
        single(written, f"m{number}")
    written.add("both", ensemble_of("m0", "m1"), EMPTY)
    assert broken(written.root, sagemaker=True) == {"sagemaker.default-model", "sagemaker.many-models"}


def test_a_configuration_in_the_root_is_no_layout_for_sagemaker(written: Written) -> None:
    """R21."""
    single(written)
    (written.root / "config.pbtxt").write_text(ONE)
    (found,) = findings(written.root, sagemaker=True)
    assert (found.rule, found.place) == ("sagemaker.layout", "config.pbtxt")


@pytest.mark.parametrize("place", ["config.pbtxt", "1"])
def test_the_folder_of_one_model_is_no_archive_for_sagemaker(place: str, written: Written) -> None:
    """R21."""
    config = ONE if place == "config.pbtxt" else None
    folder = written.add("m", config, {"1/model.py": MODEL})
    (found,) = check_repository(folder, sagemaker=True)
    assert (found.rule, found.place) == ("sagemaker.layout", place)
    with pytest.raises(RepositoryError, match="the folder of one model"):
        check_repository(folder)


def test_a_model_that_is_named_by_a_number_is_a_model(written: Written) -> None:
    written.add("1", None, {"1/model.py": MODEL})
    assert broken(written.root, sagemaker=True) == set()


def test_a_folder_around_the_models_is_no_layout_for_sagemaker(written: Written) -> None:
    """R21."""
    single(written, "repository/m")
    (found,) = findings(written.root, sagemaker=True)
    assert (found.rule, found.place) == ("sagemaker.layout", "repository")
    assert "tar -C repository" in found.remedy


@pytest.mark.parametrize("name", ["code", ".ipynb_checkpoints"])
def test_a_folder_that_is_no_model_counts_as_one_to_the_start_script(name: str, written: Written) -> None:
    single(written)
    written.add(name, None, {"inference.py": "x"})
    (found,) = findings(written.root, sagemaker=True)
    assert (found.rule, found.place) == ("sagemaker.stray-folder", name)


@pytest.mark.parametrize(
    ("name", "rules"), [("my model", {"sagemaker.name"}), ("m*", {"sagemaker.name"}), ("a-b_1.2", set())]
)
def test_a_name_that_a_shell_reads_otherwise_is_found(name: str, rules: set[str], written: Written) -> None:
    single(written, name)
    assert broken(written.root, sagemaker=True) == rules


@pytest.mark.parametrize(("version", "rules"), [("11.0.0.114", {"sagemaker.tensorrt"}), ("10.16.1.11", set())])
def test_a_plan_of_tensorrt_11_has_no_container_there(version: str, rules: set[str], written: Written) -> None:
    written.add("m", 'backend: "tensorrt"', {"1/model.plan": plan(version)})
    assert broken(written.root, sagemaker=True) == rules


def test_a_decoupled_model_is_doubtful(written: Written) -> None:
    single(written, config=ONE + "model_transaction_policy { decoupled: true }\n")
    (found,) = findings(written.root, sagemaker=True)
    assert (found.rule, found.severity, found.line) == ("sagemaker.decoupled", "warning", 3)


def test_nothing_of_this_is_asked_of_others(written: Written) -> None:
    single(written, "my model", ONE + "model_transaction_policy { decoupled: true }\n")
    single(written, "n")
    assert broken(written.root) == set()
