"""pip gets the wheels of another Python: all that is needed there, and nothing that does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.compilers.python_backend.environment.wheels import Platform, collect_wheels, read_requirements
from plansmith.errors import EnvironmentFault

from .tiny import ELEVEN, TWELVE, write_wheel


def collect(folder: Path, requirements: str, platform: Platform, **versions: str) -> list[str]:
    """The files that were got."""
    wheels = collect_wheels(read_requirements(requirements), platform, versions, folder / f"got-{platform.python}")
    return [wheel.path.name for wheel in wheels]


@pytest.mark.slow
def test_wheel_fits_requested_python(index: Path, tmp_path: Path) -> None:
    """A wheel is fetched for the Python that is asked for, with what it needs there."""
    for python in ("311", "312"):
        write_wheel(
            index,
            "built",
            tag=f"cp{python}-cp{python}-manylinux_2_28_x86_64",
            needs=['old; python_version < "3.12"', 'new; python_version >= "3.12"', 'never; extra == "never"'],
        )
    write_wheel(index, "old", needs=["last"])
    write_wheel(index, "new", tag="cp38-abi3-manylinux2014_x86_64", needs=["last>=1", 'windows; os_name == "nt"'])
    write_wheel(index, "last")
    assert collect(tmp_path, "built", ELEVEN) == [
        "built-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "last-1.0-py3-none-any.whl",
        "old-1.0-py3-none-any.whl",
    ]
    assert collect(tmp_path, "built", TWELVE) == [
        "built-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "last-1.0-py3-none-any.whl",
        "new-1.0-cp38-abi3-manylinux2014_x86_64.whl",
    ]


def test_held_version_taken_where_fitting(index: Path, tmp_path: Path) -> None:
    """A held version is taken where it fits and the newest elsewhere."""
    for number in ("1.0", "2.0", "3.0"):
        write_wheel(index, "held", number)
        write_wheel(index, "free", number)
    assert collect(tmp_path, "held\nfree<3", TWELVE, held="1.0", free="3.0") == [
        "free-2.0-py3-none-any.whl",
        "held-1.0-py3-none-any.whl",
    ]


def test_unneeded_held_version_left_out(index: Path, tmp_path: Path) -> None:
    """What is held and not needed is left out."""
    write_wheel(index, "asked")
    write_wheel(index, "other")
    assert collect(tmp_path, "asked", TWELVE, other="1.0") == ["asked-1.0-py3-none-any.whl"]


def test_contradicting_requirements_are_named(index: Path, tmp_path: Path) -> None:
    """Requirements that contradict each other are named."""
    write_wheel(index, "one", needs=["shared>=2"])
    write_wheel(index, "shared", "1.0")
    with pytest.raises(EnvironmentFault, match="does not go together") as refused:
        collect(tmp_path, "one\nshared==1.0", TWELVE)
    assert "shared is 1.0" in refused.value.message
    assert ">=2" in refused.value.message


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_39_x86_64"])
def test_unfitting_wheel_counts_as_none(tag: str, index: Path, tmp_path: Path) -> None:
    """A wheel for another Python or a newer glibc counts as none."""
    write_wheel(index, "built", tag=tag)
    with pytest.raises(EnvironmentFault, match=r"pip could not get built for Python 3\.12 on x86_64") as refused:
        collect(tmp_path, "built", TWELVE)
    assert "No matching distribution found for built" in refused.value.message
    assert "environment: image" in refused.value.remedy
