"""One command for several targets: each has a repository of its own, and no repository lies in another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.config.target_names import shipped_file

from ...support.cli.in_process import InProcess
from ..conftest import Compiled

pytestmark = pytest.mark.slow


@pytest.fixture
def twins(finished: Compiled, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """A folder in which `tiny` was compiled for local-cpu, and that has a target file ours.yaml with the same facts."""
    (finished.folder / "ours.yaml").write_text(shipped_file("local-cpu").read_text())
    return InProcess(finished.folder, monkeypatch, capfd)


TARGETS = ("--target", "local-cpu", "--target", "ours.yaml")


def test_target_has_own_repository(finished: Compiled, twins: InProcess) -> None:
    """Each target has a release in a repository of its own."""
    many = twins.folder / "many"
    answer = twins(*finished.command, *TARGETS, "--repository", "many", "--json")
    assert answer.status == 0, answer
    entries = answer.document["models"]
    assert [(entry["name"], entry["target"], entry["repository"]) for entry in entries] == [
        ("tiny", "local-cpu", str(many / "local-cpu")),
        ("tiny", "ours", str(many / "ours")),
    ]
    targets = [json.loads(Path(entry["manifest"]).read_text())["target"] for entry in entries]
    assert targets == ["local-cpu", str(twins.folder / "ours.yaml")]
    again = twins(*finished.command, *TARGETS, "--repository", "many", "--target", "a-toaster")
    assert again.status == 6
    assert again.stdout.splitlines()[-4:] == [
        "3 models: 2 unchanged, 1 failed",
        "  tiny  local-cpu  unchanged, version 1",
        "  tiny  ours       unchanged, version 1",
        "  tiny  a-toaster  failed, exit code 6",
    ]
    assert "tiny for ours (2 of 3)" in again.stderr
    assert "plansmith: tiny for a-toaster: there is no target 'a-toaster'" in again.stderr
    for arguments in (("serve", "--repository", "many"), (*finished.command, "--repository", "many")):
        around = twins(*arguments)
        assert around.status == 7
        assert f"{many} holds the repositories of several targets" in around.message
        assert f"name one of them: {many / 'local-cpu'}, {many / 'ours'}" in around.message


def test_nested_repository_refused(finished: Compiled, twins: InProcess) -> None:
    """A repository is not put into another."""
    inside = twins(*finished.command, *TARGETS)
    assert inside.status == 7
    assert "artifacts/repository/local-cpu would lie in the repository" in inside.stderr
    assert not (twins.folder / "artifacts" / "repository" / "local-cpu").exists()


def test_dry_run_tells_each_target(finished: Compiled, twins: InProcess) -> None:
    """A dry run tells of each target of a spec, or of the one that is typed."""
    spec = f"source: {finished.command[1]}\nname: tiny\ncheck_served: false\nrepository: many\n"
    (twins.folder / "tiny.yaml").write_text(f"{spec}target: [local-cpu, ours.yaml]\n")
    entries = twins("compile", "tiny.yaml", "--dry-run", "--json").document["models"]
    assert [(entry["target"], entry["plan"]["lower"], entry["plan"]["publish"]) for entry in entries] == [
        ("local-cpu", "cached", "would run"),
        ("ours", "cached", "would run"),
    ]
    alone = twins("compile", "tiny.yaml", "--dry-run", "--json", "--target", "local-cpu").document["models"]
    assert [entry["target"] for entry in alone] == ["local-cpu"]


def test_lowering_takes_one_target(finished: Compiled, twins: InProcess) -> None:
    """A graph is lowered for one target."""
    refused = twins("lower", finished.command[1], *TARGETS)
    assert refused.status == 2
    assert "holds 2 models" in refused.message
    assert "one --target" in refused.message
