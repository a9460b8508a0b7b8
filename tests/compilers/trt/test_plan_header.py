"""The header of a plan is read without TensorRT, and what is no whole plan is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.compilers.trt.plan_header import HEADER_BYTES, PlanHeader, read_header
from plansmith.errors import EngineError

from ...support.tensorrt.plan_files import plan


@pytest.mark.parametrize("version", ["8.6.1.6", "10.13.3.9", "10.16.1.11", "11.0.0.114", "11.4.0.106"])
def test_four_version_numbers_read(version: str, tmp_path: Path) -> None:
    """The four numbers of TensorRT are read."""
    (tmp_path / "model.plan").write_bytes(plan(version))
    assert read_header(tmp_path / "model.plan") == PlanHeader(serialization=0, tensorrt=version)


def test_a_header_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(plan()[:HEADER_BYTES])
    assert read_header(tmp_path / "model.plan").tensorrt == "10.16.1.11"


@pytest.mark.parametrize("kept", range(HEADER_BYTES))
def test_truncated_plan_is_told(kept: int, tmp_path: Path) -> None:
    """A plan that ends inside its header is said to be cut off."""
    (tmp_path / "model.plan").write_bytes(plan()[:kept])
    with pytest.raises(EngineError, match=f"cut off: it has {kept} bytes") as refused:
        read_header(tmp_path / "model.plan")
    assert refused.value.remedy.startswith("build it again")


FOREIGN = {
    "an ONNX graph": b"\x08\x0a\x12\x07pytorch" + bytes(30),
    "a short text": b"hello\n",
    "a plan in other byte order": plan(magic=b"trtf"),
    "a plan with a flipped bit": plan(magic=b"ftru"),
    "a plan of TensorRT 8.5": b"ptrt" + plan()[4:],
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_non_plan_is_said(content: bytes, tmp_path: Path) -> None:
    """A file that is not a plan is said not to be one."""
    (tmp_path / "model.plan").write_bytes(content)
    with pytest.raises(EngineError, match=r"is no plan of TensorRT 8\.6 or later") as refused:
        read_header(tmp_path / "model.plan")
    assert refused.value.remedy


ALTERED = {
    "another serialisation": plan(serialization=7),
    "a TensorRT that never was": plan("0.0.0.0"),
    "a TensorRT that has no such header": plan("7.2.3.4"),
}


@pytest.mark.parametrize("content", ALTERED.values(), ids=ALTERED.keys())
def test_foreign_header_refused(content: bytes, tmp_path: Path) -> None:
    """A header that no TensorRT writes is refused."""
    (tmp_path / "model.plan").write_bytes(content)
    with pytest.raises(EngineError, match="was altered") as refused:
        read_header(tmp_path / "model.plan")
    assert "newer plansmith" in refused.value.remedy


def test_missing_plan_is_named(tmp_path: Path) -> None:
    """A plan that is not there is named."""
    with pytest.raises(EngineError, match=r"cannot read the plan .*gone\.plan: No such file") as refused:
        read_header(tmp_path / "gone.plan")
    assert refused.value.remedy
