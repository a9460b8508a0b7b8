"""What requirements bring along is told by the target's Python, and comes in the versions that are installed here."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from plansmith.compilers.python_backend.environment.wheels import (
    installed_versions,
    platform_of,
    read_requirements,
)
from plansmith.config.targets import load_target
from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import RUNNING_PYTHON

from .tiny import TWELVE


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
