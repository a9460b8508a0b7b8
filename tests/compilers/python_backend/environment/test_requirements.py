"""What requirements bring along is told by the target's Python, and comes in the versions that are installed here."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from plansmith.compilers.python_backend.environment.wheels import (
    installed_versions,
    is_needed,
    platform_of,
    read_requirements,
)
from plansmith.config.targets import load_target
from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import RUNNING_PYTHON

from .tiny import ELEVEN, TWELVE


def test_requirements_order_is_irrelevant() -> None:
    """The order the comments and the spaces of requirements do not matter."""
    requirements = read_requirements("numpy==1.26.4\n\n# words\ntokenizers == 0.23.3  # why\n")
    assert requirements == read_requirements("tokenizers==0.23.3\nnumpy==1.26.4")
    assert [str(requirement) for requirement in requirements] == ["numpy==1.26.4", "tokenizers==0.23.3"]


@pytest.mark.parametrize("line", ["-r other.txt", "--pre", "./wheels/tiny.whl", "tiny @ file:///tiny.whl", "tiny=1.0"])
def test_odd_requirement_line_refused(line: str) -> None:
    """A line that names more than a distribution and its versions is refused."""
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
def test_markers_are_target_ones(requirement: str, on_eleven: bool, on_twelve: bool) -> None:
    """Markers are those of the target, and not of this machine."""
    parsed = Requirement(requirement)
    assert (is_needed(parsed, ELEVEN), is_needed(parsed, TWELVE)) == (on_eleven, on_twelve)


def test_extra_brings_its_dependencies() -> None:
    """What an extra brings along is needed with it alone."""
    requirement = Requirement('tiny; extra == "more"')
    assert is_needed(requirement, TWELVE, ["more"])
    assert not is_needed(requirement, TWELVE, ["less"])


def test_dependencies_held_at_installed_version() -> None:
    """Dependencies are held at the installed version, and what does not fit is not."""
    versions = installed_versions(read_requirements("tokenizers\nnumpy==1.26.4"), TWELVE)
    assert versions["tokenizers"] == version("tokenizers")
    assert versions["huggingface-hub"] == version("huggingface-hub")
    assert version("numpy") != "1.26.4"
    assert "numpy" not in versions


def test_unrequested_installed_version_ignored() -> None:
    """Nothing follows from an installed version that is not asked for."""
    assert "networkx" in installed_versions(read_requirements("torch"), TWELVE)
    assert installed_versions(read_requirements("torch==2.0.0"), TWELVE) == {}


def test_target_python_comes_first() -> None:
    """The Python is that of the target, or the running one where the target has none."""
    image, local = platform_of(load_target("triton-26.08")), platform_of(load_target("local-cpu"))
    assert image.python == "3.12"
    assert local.python == RUNNING_PYTHON
    flags = image.pip_flags()
    assert {"--python-version=3.12", "--abi=cp312", "--abi=abi3"} <= set(flags)
    assert f"--platform=manylinux_2_28_{image.machine}" in flags
    assert f"--platform=manylinux_2_35_{image.machine}" not in flags
