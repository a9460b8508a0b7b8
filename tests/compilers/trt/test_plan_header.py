"""The header of a plan is read without TensorRT, and what is no whole plan is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.compilers.trt.inspection.header import HEADER_BYTES, PlanHeader, read_header
from plansmith.errors import EngineError

from ...support.tensorrt.plan_files import plan


@pytest.mark.parametrize("version", ["8.6.1.6", "10.13.3.9", "10.16.1.11", "11.0.0.114", "11.4.0.106"])
def test_the_four_numbers_of_tensorrt_are_read(version: str, tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(plan(version))
    assert read_header(tmp_path / "model.plan") == PlanHeader(serialization=0, tensorrt=version)


def test_a_header_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(plan()[:HEADER_BYTES])
    assert read_header(tmp_path / "model.plan").tensorrt == "10.16.1.11"


@pytest.mark.parametrize("kept", range(HEADER_BYTES))
def test_a_plan_that_ends_inside_of_its_header_is_cut_off(kept: int, tmp_path: Path) -> None:
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
def test_what_is_no_plan_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
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
def test_a_header_that_no_tensorrt_writes_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(content)
    with pytest.raises(EngineError, match="was altered") as refused:
        read_header(tmp_path / "model.plan")
    assert "newer plansmith" in refused.value.remedy


def test_a_plan_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot read the plan .*gone\.plan: No such file") as refused:
        read_header(tmp_path / "gone.plan")
    assert refused.value.remedy
