"""What requirements bring along is told by the target's Python, and comes in the versions that are installed here."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from plansmith.compilers.python_backend.environment.platform import platform_of
from plansmith.compilers.python_backend.environment.requirements import installed_versions, is_needed, read_requirements
from plansmith.config.target.targets import load_target
from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import RUNNING_PYTHON

from .tiny import ELEVEN, TWELVE


def test_the_order_the_comments_and_the_spaces_of_requirements_do_not_matter() -> None:
    one = read_requirements("numpy==1.26.4\n\n# words\ntokenizers == 0.23.3  # why\n")
    assert one == read_requirements("tokenizers==0.23.3\nnumpy==1.26.4")
    assert [str(requirement) for requirement in one] == ["numpy==1.26.4", "tokenizers==0.23.3"]


@pytest.mark.parametrize("line", ["-r other.txt", "--pre", "./wheels/tiny.whl", "tiny @ file:///tiny.whl", "tiny=1.0"])
def test_a_line_that_names_more_than_a_distribution_and_its_versions_is_refused(line: str) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be packed of the requirement") as refused:
        read_requirements(f"numpy==1.26.4\n{line}\n")
    assert repr(line) in refused.value.message


@pytest.mark.parametrize(
    ("requirement", "on_eleven", "on_twelve"),
    [
        ('tiny; python_version < "3.12"', True, False),
        ('tiny; python_full_version >= "3.12.0"', False, True),
        ('tiny; sys_platform == "win32" or platform_machine == "aarch64"', False, False),
        ('tiny; platform_system == "Linux"', True, True),
        ('tiny; extra == "more"', False, False),
    ],
)
def test_markers_are_those_of_the_target_and_not_of_this_machine(
    requirement: str, on_eleven: bool, on_twelve: bool
) -> None:
    asked = Requirement(requirement)
    assert (is_needed(asked, ELEVEN), is_needed(asked, TWELVE)) == (on_eleven, on_twelve)


def test_what_an_extra_brings_along_is_needed_with_it_alone() -> None:
    asked = Requirement('tiny; extra == "more"')
    assert is_needed(asked, TWELVE, ["more"])
    assert not is_needed(asked, TWELVE, ["less"])


def test_what_is_brought_along_is_held_at_the_installed_version_and_what_does_not_fit_is_not() -> None:
    held = installed_versions(read_requirements("tokenizers\nnumpy==1.26.4"), TWELVE)
    assert held["tokenizers"] == version("tokenizers")
    assert held["huggingface-hub"] == version("huggingface-hub")
    assert version("numpy") != "1.26.4"
    assert "numpy" not in held


def test_nothing_follows_from_an_installed_version_that_is_not_asked_for() -> None:
    assert "networkx" in installed_versions(read_requirements("torch"), TWELVE)
    assert installed_versions(read_requirements("torch==2.0.0"), TWELVE) == {}


def test_the_python_is_that_of_the_target_and_the_running_one_where_the_target_has_none() -> None:
    image, here = platform_of(load_target("triton-26.08")), platform_of(load_target("local-cpu"))
    assert image.python == "3.12"
    assert here.python == RUNNING_PYTHON
    flags = image.pip_flags()
    assert {"--python-version=3.12", "--abi=cp312", "--abi=abi3"} <= set(flags)
    assert f"--platform=manylinux_2_28_{image.machine}" in flags
    assert f"--platform=manylinux_2_35_{image.machine}" not in flags
