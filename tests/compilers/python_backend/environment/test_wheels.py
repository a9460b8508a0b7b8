"""The packages of another Python are got: all that is needed there, and nothing that does not go together."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlunsplit

import pytest

from plansmith.compilers.python_backend.environment.wheels import Platform, install_packages, read_requirements
from plansmith.errors import EnvironmentFault

from .tiny import ELEVEN, TWELVE, write_wheel


def collect(folder: Path, requirements: str, platform: Platform, **versions: str) -> list[str]:
    """The wheels that were installed."""
    got = folder / f"got-{platform.python}"
    got.mkdir()
    _, distributions = install_packages(read_requirements(requirements), platform, versions, got)
    return [distribution.wheel for distribution in distributions]


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


def test_held_version_taken(index: Path, tmp_path: Path) -> None:
    """A held version is taken, a release candidate too, and the newest of what is not held."""
    for number in ("1.0", "2.0rc1", "2.0"):
        write_wheel(index, "held", number)
        write_wheel(index, "free", number)
    assert collect(tmp_path, "held\nfree", TWELVE, held="2.0rc1") == [
        "free-2.0-py3-none-any.whl",
        "held-2.0rc1-py3-none-any.whl",
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
    with pytest.raises(EnvironmentFault) as refused:
        collect(tmp_path, "one\nshared==1.0", TWELVE)
    assert {"shared>=2", "shared==1.0"} <= {word.strip(",.") for word in refused.value.message.split()}


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_39_x86_64"])
def test_unfitting_wheel_counts_as_none(tag: str, index: Path, tmp_path: Path) -> None:
    """A wheel for another Python or a newer glibc counts as none."""
    write_wheel(index, "built", tag=tag)
    with pytest.raises(EnvironmentFault, match=r"for Python 3\.12 on x86_64:\n") as refused:
        collect(tmp_path, "built", TWELVE)
    assert "built==1.0 has no wheels with a matching" in refused.value.message
    assert "environment: image" in refused.value.remedy


@pytest.mark.usefixtures("index")
def test_index_of_pip_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that pip is configured for is asked, and its password is not told."""
    monkeypatch.delenv("PIP_NO_INDEX")
    password, nobody, path = "hidden", "127.0.0.1:9", "simple"
    address = urlunsplit(("http", f"reader:{password}@{nobody}", path, "", ""))
    monkeypatch.setenv("PIP_INDEX_URL", address)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EnvironmentFault, match=f"{nobody}/{path}/absent/") as refused:
        collect(tmp_path, "absent", TWELVE)
    assert password not in str(refused.value)
