"""Machines that compile the same model: what one has done, no other does again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli.compile.compile import compile_command
from plansmith.config.engine_options import SHARED_CACHE_VARIABLE

from ...support.cli.in_process import InProcess
from ...support.models.graphs import save_product

SHAPES = "x=1x3x64:2x3x64:4x3x64"


class NoWorker:
    """Refuses every heavy step."""

    def __init__(self, *_: Any) -> None:
        raise AssertionError("a heavy step is done again")


@pytest.fixture
def plansmith(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    save_product(tmp_path)
    return InProcess(tmp_path, monkeypatch, capfd)


def compile_on(plansmith: InProcess, machine: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """Compile with the artifacts of a machine; what it printed as JSON, and what it said."""
    options = ("onnx:net.onnx", "--shapes", SHAPES, "--no-check-served", "--artifacts", machine)
    answer = plansmith("compile", *options, "--json", *arguments)
    assert answer.status == 0, answer.stderr
    return json.loads(answer.stdout), answer.stderr


def digest_in(told: dict[str, Any]) -> str:
    """That of the release, from its manifest."""
    return str(json.loads(Path(told["manifest"]).read_text())["release_digest"])


def test_second_machine_skips_heavy_steps(plansmith: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second machine compiles without doing a heavy step, and publishes where the contents are."""
    first, output = compile_on(plansmith, "a", "--shared-cache", "shared")
    assert "from the shared cache" not in output
    monkeypatch.setattr("plansmith.steps.runner.Worker", NoWorker)
    plan, _ = compile_on(plansmith, "b", "--shared-cache", "shared", "--dry-run")
    assert plan["plan"]["fetch"] == "would come from the shared cache"
    assert plan["plan"]["package"] == "would come from the shared cache, or run"
    assert not (plansmith.folder / "b").exists()
    second, output = compile_on(plansmith, "b", "--shared-cache", "shared", "--publish", "shared")
    assert digest_in(second) == digest_in(first)
    assert {step["name"] for step in second["steps"] if step["cached"]} >= {"lower", "compile", "validate", "package"}
    (notice,) = [line for line in output.splitlines() if "shared cache" in line]
    assert f"from the shared cache {plansmith.folder / 'shared'}: fetch, export, " in notice
    (published,) = second["publications"]
    assert 0 < published["sent_bytes"] < published["total_bytes"]


def test_environment_names_shared_place(plansmith: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the place where neither spec nor command line does."""
    monkeypatch.setenv(SHARED_CACHE_VARIABLE, str(plansmith.folder / "of the environment"))
    compile_on(plansmith, "a")
    assert (plansmith.folder / "of the environment" / "cache").is_dir()
    monkeypatch.setattr("plansmith.steps.runner.Worker", NoWorker)
    (plansmith.folder / "specs").mkdir()
    (plansmith.folder / "specs" / "net.yaml").write_text(
        f"source: onnx:../net.onnx\nshapes: {{x: {SHAPES.partition('=')[2]}}}\ncheck_served: false\n"
        "shared_cache: ../of the environment\n"
    )
    monkeypatch.setenv(SHARED_CACHE_VARIABLE, str(plansmith.folder / "elsewhere"))
    answer = plansmith("compile", "specs/net.yaml", "--artifacts", "b", "--json")
    assert answer.status == 0, answer.stderr
    assert not (plansmith.folder / "elsewhere").exists()


def test_invalid_place_refused_by_origin(plansmith: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no place is refused by the name that it was given to."""
    answer = plansmith("compile", "onnx:net.onnx", "--shared-cache", "ftp://here")
    assert (answer.status, "'shared_cache" in answer.stderr) == (2, True)
    monkeypatch.setenv(SHARED_CACHE_VARIABLE, "gs://bucket")
    answer = plansmith("compile", "onnx:net.onnx")
    assert answer.status == 2
    assert f"{SHARED_CACHE_VARIABLE}: no destination: only folders and s3://bucket/prefix are known" in answer.stderr
    assert f"Next: export {SHARED_CACHE_VARIABLE}=" in answer.stderr


def test_the_help_names_the_variable() -> None:
    (option,) = [parameter for parameter in compile_command.params if parameter.name == "shared_cache"]
    assert SHARED_CACHE_VARIABLE in str(getattr(option, "help", ""))
