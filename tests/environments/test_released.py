"""A release brings its environment: it is laid out with it, checked with the Python that it is for, and told of."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli.environments import environment_lines
from plansmith.engines import Engine
from plansmith.environments.packing import PARAMETER
from plansmith.errors import EnvironmentFault
from plansmith.reports import Tolerance
from plansmith.stages import Finished
from plansmith.triton.installation import find_installation
from plansmith.triton.model_config import parse_config
from plansmith.triton.served_check import check_served
from plansmith.triton.serving_runtime import ServingRuntime
from plansmith.types import OnnxModel

from .releases import CASE, release
from .tiny import write_wheel


def test_a_release_brings_the_environment_that_its_spec_has_packed(
    engine: Finished[Engine], reference: Finished[OnnxModel], index: Path, tmp_path: Path
) -> None:
    write_wheel(index, "ape")
    packed = release(engine, reference, tmp_path, environment="packed")
    brought = packed.record.environment
    assert brought is not None
    assert (brought.python, [one.name for one in brought.distributions]) == ("3.12", ["ape"])
    assert packed.record.support_files == ("env.tar.gz",)
    assert (packed.folder / "env.tar.gz").stat().st_size == brought.bytes
    config = parse_config((packed.folder / "config.pbtxt").read_text())
    assert config.parameters[PARAMETER].string_value == "$$TRITON_MODEL_DIRECTORY/env.tar.gz"
    (line,) = environment_lines(packed.record)
    assert line.startswith("odd brings its environment for Python 3.12: 1 packages, ")
    assert release(engine, reference, tmp_path, environment="packed", dry=True).cached


def test_a_release_that_leaves_its_environment_to_the_image_brings_none(
    engine: Finished[Engine], reference: Finished[OnnxModel], tmp_path: Path
) -> None:
    left = release(engine, reference, tmp_path, environment="image")
    assert left.record.environment is None
    assert left.record.support_files == ()
    assert PARAMETER not in parse_config((left.folder / "config.pbtxt").read_text()).parameters
    assert list(environment_lines(left.record)) == []


def test_packages_that_no_index_has_end_the_packing_and_leave_no_release(
    engine: Finished[Engine], reference: Finished[OnnxModel], index: Path, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentFault, match=r"pip could not get ape==1\.0 for Python 3\.12") as missing:
        release(engine, reference, tmp_path, environment="packed")
    assert (missing.value.model, missing.value.step) == ("odd", "package")
    write_wheel(index, "ape")
    assert not release(engine, reference, tmp_path, environment="packed").cached


@pytest.mark.slow
@pytest.mark.xdist_group("environments")
def test_the_served_check_lends_a_release_the_python_of_its_image(
    engine: Finished[Engine], reference: Finished[OnnxModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        installation = find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    beside = [str(folder) for folder in sorted(Path(sys.base_prefix).parent.glob("3.12*/bin"))]
    if not installation.lends_python or not beside:
        pytest.skip("there is no Python 3.12 beside the running one, or no process for it")
    (tmp_path / "links").mkdir()
    write_wheel(tmp_path / "links", "ape", files={"ape.py": "FACTOR = 7\n"}, needs=["numpy==1.26.4"])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    packed = release(engine, reference, tmp_path, environment="packed")
    runtime = ServingRuntime(installation, None, "none", "cpu")
    asked: dict[str, Any] = {
        "runtime": runtime,
        "mask_input": None,
        "tolerances": {"y": Tolerance(max_relative=1e-6, quantile_relative=1e-6, min_cosine=0.999999)},
        "scratch": tmp_path / "repository",
        "log": tmp_path / "log",
        "progress": lambda _: None,
    }
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        with pytest.raises(EnvironmentFault, match=r"environment is for Python 3\.12, with which it cannot be served"):
            check_served(packed.record, packed.folder, [CASE], **asked)
    monkeypatch.setenv("PATH", ":".join([*beside, os.environ["PATH"]]))
    report = check_served(packed.record, packed.folder, [CASE], **asked)
    assert report.requests == len(report.checks) > 0
    assert not (tmp_path / "repository").exists()
