"""One command for several targets: each has a repository of its own, and no repository lies in another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.config.target.names import shipped_file

from ...support.cli.in_process import InProcess
from ..conftest import Compiled

pytestmark = pytest.mark.slow


@pytest.fixture
def twins(finished: Compiled, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """A folder in which `tiny` was compiled for local-cpu, and that has a target file ours.yaml with the same facts."""
    (finished.folder / "ours.yaml").write_text(shipped_file("local-cpu").read_text())
    return InProcess(finished.folder, monkeypatch, capfd)


TARGETS = ("--target", "local-cpu", "--target", "ours.yaml")


def test_each_target_has_a_release_in_a_repository_of_its_own(finished: Compiled, twins: InProcess) -> None:
    many = twins.folder / "many"
    answer = twins(*finished.command, *TARGETS, "--repository", "many", "--json")
    assert answer.status == 0, answer
    found = answer.document["models"]
    assert [(one["name"], one["target"], one["repository"]) for one in found] == [
        ("tiny", "local-cpu", str(many / "local-cpu")),
        ("tiny", "ours", str(many / "ours")),
    ]
    targets = [json.loads(Path(one["manifest"]).read_text())["target"] for one in found]
    assert targets == ["local-cpu", str(twins.folder / "ours.yaml")]
    again = twins(*finished.command, *TARGETS, "--repository", "many", "--target", "a-toaster")
    assert again.status == 6
    assert again.stdout.splitlines()[-4:] == [
        "3 model(s): 2 unchanged, 1 failed",
        "  tiny  local-cpu  unchanged, version 1",
        "  tiny  ours       unchanged, version 1",
        "  tiny  a-toaster  failed, exit code 6",
    ]
    assert "tiny for ours (2 of 3)" in again.stderr
    assert "plansmith: tiny for a-toaster: there is no target 'a-toaster'" in again.stderr
    for words in (("serve", "--repository", "many"), (*finished.command, "--repository", "many")):
        around = twins(*words)
        assert around.status == 7
        assert f"{many} holds the repositories of several targets" in around.message
        assert f"name one of them: {many / 'local-cpu'}, {many / 'ours'}" in around.message


def test_a_repository_is_not_put_into_another(finished: Compiled, twins: InProcess) -> None:
    inside = twins(*finished.command, *TARGETS)
    assert inside.status == 7
    assert "artifacts/repository/local-cpu would lie in the repository" in inside.stderr
    assert not (twins.folder / "artifacts" / "repository" / "local-cpu").exists()


def test_a_dry_run_tells_of_each_target_of_a_spec_or_of_the_one_that_is_typed(
    finished: Compiled, twins: InProcess
) -> None:
    spec = f"source: {finished.command[1]}\nname: tiny\ncheck_served: false\nrepository: many\n"
    (twins.folder / "tiny.yaml").write_text(f"{spec}target: [local-cpu, ours.yaml]\n")
    found = twins("compile", "tiny.yaml", "--dry-run", "--json").document["models"]
    assert [(one["target"], one["plan"]["lower"], one["plan"]["publish"]) for one in found] == [
        ("local-cpu", "cached", "would run"),
        ("ours", "cached", "would run"),
    ]
    alone = twins("compile", "tiny.yaml", "--dry-run", "--json", "--target", "local-cpu").document["models"]
    assert [one["target"] for one in alone] == ["local-cpu"]


def test_a_graph_is_lowered_for_one_target(finished: Compiled, twins: InProcess) -> None:
    refused = twins("lower", finished.command[1], *TARGETS)
    assert refused.status == 2
    assert "holds 2 models" in refused.message
    assert "one --target" in refused.message
