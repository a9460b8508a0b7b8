"""A release brings its environment: it is laid out with it, checked with the Python that it is for, and told of."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.cli.compile.outcomes import environment_lines
from plansmith.errors import EnvironmentFault
from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind, OnnxModel
from plansmith.records.release import Package
from plansmith.records.validation import Tolerance
from plansmith.steps.release.environment import PARAMETER
from plansmith.steps.runner import StepResult
from plansmith.triton.client import Client
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.server.installation import find_installation
from plansmith.triton.server.runtime import ServingRuntime
from plansmith.triton.server.served_check import check_served

from ....support.cli.command import CommandLine
from ....support.cli.commands import serve
from ....support.faults.packages import draft_of, publish
from ....support.waiting import soon
from .releases import CASE, X, look, release
from .tiny import write_wheel


def test_release_brings_packed_environment(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], index: Path, tmp_path: Path
) -> None:
    """A release brings the environment that its spec has packed."""
    write_wheel(index, "ape")
    packed = release(engine, reference, tmp_path, environment="packed")
    brought = packed.record.environment
    assert brought is not None
    assert (brought.python, [distribution.name for distribution in brought.distributions]) == ("3.12", ["ape"])
    assert packed.record.support_files == ("env.tar.gz",)
    assert (packed.folder / "env.tar.gz").stat().st_size == brought.bytes
    config = parse_config((packed.folder / "config.pbtxt").read_text())
    assert config.parameters[PARAMETER].string_value == "$$TRITON_MODEL_DIRECTORY/env.tar.gz"
    (line,) = environment_lines(packed.record)
    assert line.startswith("odd brings its environment for Python 3.12: 1 package, ")
    assert look(engine, reference, tmp_path, environment="packed") is not None


def test_image_environment_not_brought(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], tmp_path: Path
) -> None:
    """A release that leaves its environment to the image brings none."""
    left = release(engine, reference, tmp_path, environment="image")
    assert left.record.environment is None
    assert left.record.support_files == ()
    assert PARAMETER not in parse_config((left.folder / "config.pbtxt").read_text()).parameters
    assert list(environment_lines(left.record)) == []


@pytest.mark.slow
def test_unindexed_packages_leave_no_release(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], index: Path, tmp_path: Path
) -> None:
    """Packages that no index has end the packing and leave no release."""
    with pytest.raises(EnvironmentFault, match=r"Python 3\.12 on x86_64:\n(.|\n)*ape") as missing:
        release(engine, reference, tmp_path, environment="packed")
    assert (missing.value.model, missing.value.step) == ("odd", "package")
    write_wheel(index, "ape")
    assert not release(engine, reference, tmp_path, environment="packed").cached


@pytest.fixture
def pythons_beside() -> str:
    """What PATH has to begin with for Python 3.12 to be on it."""
    try:
        installation = find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    beside = [str(folder) for folder in sorted(Path(sys.base_prefix).parent.glob("3.12*/bin"))]
    if not installation.lends_python or not beside:
        pytest.skip("there is no Python 3.12 beside the running one, or no process for it")
    return ":".join(beside)


@pytest.fixture
def packed(
    engine: StepResult[Engine],
    reference: StepResult[OnnxModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pythons_beside: str,  # noqa: ARG001 - without them nothing is packed
) -> StepResult[Package]:
    """A release that brings its environment, for Python 3.12."""
    (tmp_path / "links").mkdir()
    write_wheel(tmp_path / "links", "ape", files={"ape.py": "FACTOR = 7\n"}, needs=["numpy==1.26.4"])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    return release(engine, reference, tmp_path, environment="packed")


@pytest.mark.slow
@pytest.mark.xdist_group("environments")
def test_check_lends_image_python(
    packed: StepResult[Package], pythons_beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The served check lends a release the Python of its image."""
    runtime = ServingRuntime(find_installation(), None, "none", "cpu")
    options: dict[str, Any] = {
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
            check_served(packed.record, packed.folder, [CASE], **options)
    monkeypatch.setenv("PATH", f"{pythons_beside}:{os.environ['PATH']}")
    report = check_served(packed.record, packed.folder, [CASE], **options)
    assert report.requests == len(report.checks) > 0
    assert not (tmp_path / "repository").exists()


@pytest.mark.slow
@pytest.mark.xdist_group("environments")
@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=["", "follow"])
def test_published_release_uses_image_python(
    follow: tuple[str, ...],
    packed: StepResult[Package],
    pythons_beside: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A release that was published is served here with the Python of its image."""
    repository = tmp_path / "repository"
    draft = draft_of(packed.folder, model="odd")
    engine = draft.engine.model_copy(update={"kind": EngineKind.PYTHON})
    publish(repository, packed.folder, draft.model_copy(update={"package": packed.record, "engine": engine}))
    files = sorted((repository / "odd").iterdir())
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        lacking = CommandLine(tmp_path)("serve", "odd", "--repository", repository)
    assert lacking.message.startswith("plansmith: the model's environment is for Python 3.12, with which it cannot be")
    monkeypatch.setenv("PATH", f"{pythons_beside}:{os.environ['PATH']}")
    log = tmp_path / "said"
    with serve(str(repository), "odd", log, *follow) as (http, _):
        if follow:
            assert soon(lambda: "odd: version 1 serves" in log.read_text(), expected=True), log.read_text()
        with Client(http, model="odd") as client:
            assert np.array_equal(client.infer({"x": X})["y"], CASE.answer["y"])
    np.save(tmp_path / "asked.npy", X)
    infer = CommandLine(tmp_path)(
        "infer", "odd", "--input", f"x={tmp_path / 'asked.npy'}", "--serve", "--repository", repository
    )
    assert infer.status == 0, infer.stderr
    assert sorted((repository / "odd").iterdir()) == files
