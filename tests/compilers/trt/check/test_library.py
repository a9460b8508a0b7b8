"""Whether TensorRT-RTX is here, and what it builds for."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from plansmith.compilers.trt import rtx
from plansmith.errors import EnvironmentFault

from ....support.source import ROOT


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        (("1.6.1.120", "1.6.1.120"), r"is known for .*1\.7\.1\.116, and 1\.6\.1\.120 is inst"),
        (("1.7.1.116", "1.8.0.10"), r"1\.7\.1\.116 and 1\.8\.0\.10 is installed"),
        ((), "not installed"),
    ],
)
def test_other_library_refused_early(
    versions: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another library is refused before any work."""
    for name, version in zip(rtx.DISTRIBUTIONS, versions, strict=False):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvironmentFault, match=says) as refused:
        rtx.require_installed()
    assert "pip install 'plansmith[tensorrt-check]'" in refused.value.remedy


def test_extra_brings_known_version() -> None:
    """The extra brings the version that checks are known for."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["tensorrt-check"] == [f"{name}=={rtx.VERSION}" for name in rtx.DISTRIBUTIONS]


@pytest.mark.parametrize(
    ("target", "built"), [("7.5", "8.0"), ("8.0", "8.0"), ("9.0", "8.9"), ("10.0", "8.9"), ("12.0", "12.0")]
)
def test_next_lower_gpu_stands_in(target: str, built: str) -> None:
    """The next lower kind of GPU stands in for one that is not there."""
    assert rtx.nearest(target) == built
