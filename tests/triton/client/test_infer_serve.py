"""`plansmith infer --serve` starts a Triton for one request, where none runs, and ends it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plansmith.cli.infer.inputs import Row, row_arrays
from plansmith.errors import UsageError
from plansmith.records.model import Tensor
from plansmith.triton.client import Signature

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.cli.screen import in_terminal
from ...support.faults.packages import draft_of, publish, write_package
from .served import TINY

if TYPE_CHECKING:
    from ..conftest import Started

pytestmark = pytest.mark.xdist_group("client")

Alone = Callable[..., Any]


@pytest.fixture
def alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], repository: Path
) -> Alone:
    """`plansmith infer` where no server is named, beside a copy of the repository in the usual place."""
    shutil.copytree(repository, tmp_path / "artifacts" / "repository")
    command = InProcess(tmp_path, monkeypatch, capfd)
    return lambda *arguments: command("infer", *arguments)


@pytest.mark.slow
def test_temporary_server_answers_one_model(alone: Alone, tmp_path: Path, started: Started) -> None:
    """A request is answered by a server of its own, with that one model."""
    answer = alone("shout@1", "--text", "a cat", "--parameter", "n=1", "--serve")
    assert answer.status == 0, answer
    assert answer.stdout.splitlines()[:3] == ["shout, version 1, answered", "  said: string [1, 1]", "    A CAT"]
    lines = answer.stderr.splitlines()
    assert lines[0] == "starting Triton with shout; log: artifacts/repository.infer.log"
    assert lines[1].startswith("Triton 2.")
    assert " serves shout for this request, after " in lines[1]
    log = (tmp_path / "artifacts" / "repository.infer.log").read_text()
    assert "successfully loaded 'shout'" in log
    assert "'vectors'" not in log
    assert not [child for child in started() if "tritonserver" in child.name()]


@pytest.mark.slow
def test_ensemble_brings_members(alone: Alone, tmp_path: Path) -> None:
    """An ensemble brings its members, and JSON comes alone."""
    answer = alone("pipe", "--text", "four", "--serve", "--protocol", "grpc", "--json")
    assert answer.status == 0, answer
    assert answer.document["outputs"]["embedding"]["data"][0][0] == 4
    assert answer.stderr == ""
    log = (tmp_path / "artifacts" / "repository.infer.log").read_text()
    assert all(f"successfully loaded '{model}'" in log for model in ("pipe", "shout", "vectors"))
    assert "'classes'" not in log


@pytest.mark.slow
def test_refusal_shows_triton_words_and_log(alone: Alone, started: Started) -> None:
    """A refusal shows what Triton said and where its log is."""
    refused = alone("shout", "--text", "refuse", "--serve", "--json")
    check_refusal(refused, 8, ("row 0 asks for a refusal", "correct what it names", "repository.infer.log"))
    assert not [child for child in started() if "tritonserver" in child.name()]


@pytest.mark.slow
def test_unloadable_model_told_with_reason(alone: Alone, tmp_path: Path) -> None:
    """A model that does not load is told with the reason."""
    code = tmp_path / "artifacts" / "repository" / "shout" / "1" / "model.py"
    code.write_text("raise RuntimeError('broken on purpose')\n")
    check_refusal(alone("shout", "--text", "a", "--serve", "--json"), 8, ("broken on purpose", "repository.infer.log"))


WRONG = {
    "a model": (("shoud", "--text", "a"), 7, ("shows no model 'shoud'", "choose from", "shout")),
    "a version": (("shout@3", "--text", "a"), 7, ("does not show version 3 of shout", "one that is shown: 1")),
    "a repository": (("shout", "--text", "a", "--repository", "no"), 7, ("no does not exist",)),
    "an address": (("shout", "--text", "a", "--url", "127.0.0.1:8000"), 2, ("--serve starts a server", "--url")),
    "a file": (("shout", "--file", "nope"), 2, ("nope cannot be read",)),
}


@pytest.mark.parametrize(("words", "code", "says"), WRONG.values(), ids=WRONG.keys())
def test_early_mistake_told_before_start(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    """What is wrong before is told before a server starts."""
    monkeypatch.setattr("plansmith.triton.server.server.TritonServer", None)
    check_refusal(alone(*words, "--serve", "--json"), code, says)


def test_release_facts_refuse_before_start(alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a release tells is enough to refuse before a server starts."""
    root = tmp_path / "released"
    package = write_package(tmp_path / "package", "tiny")
    draft = draft_of(package, model="tiny")
    packed = draft.package.model_copy(update={"interface": TINY, "max_batch_size": 8})
    publish(root, package, draft.model_copy(update={"package": packed}))
    monkeypatch.setattr("plansmith.triton.server.server.TritonServer", None)
    arguments = ("tiny", "--serve", "--repository", root, "--json")
    check_refusal(alone(*arguments), 2, ("no input is given", "input ids: int64 [batch, length]"))
    check_refusal(alone(*arguments, "--input", "b=1"), 2, ("no input 'b'",))
    check_refusal(alone(*arguments, "--input", "a=1,2", "--input", "ids=1"), 2, ("takes [batch, 3]",))
    check_refusal(alone(*arguments, "--text", "a"), 2, ("which no inputs take",))
    (tmp_path / "ids.json").write_text("[1]")
    check_refusal(alone(*arguments, "--input", "a=@ids.json", "--input", "b=1"), 2, ("no input 'b'",))


def test_text_for_a_model_of_tokens() -> None:
    """A text for a model that takes tokens is refused with the pipeline that takes texts."""
    tokens = Signature(
        inputs=(Tensor(name="input_ids", dtype="int64", dims=("batch", "length")),), outputs=(), max_batch_size=8
    )
    with pytest.raises(UsageError) as refused:
        row_arrays(tokens, [Row("--text", "", b"a cat")])
    assert "compile it with --pipeline (`pipeline: {}` in a spec)" in refused.value.remedy


@pytest.mark.slow
def test_terminal_line_vanishes_after_start(alone: Alone, tmp_path: Path) -> None:
    """A terminal sees a line while the server starts and keeps none of it."""
    del alone
    shown = in_terminal(tmp_path, "infer", "shout", "--text", "a", "--serve", "--only", "said", columns=80)
    assert shown.status == 0, shown.screen
    assert "starting Triton with shout" in shown.written
    assert [line for line in shown.screen if line][1:] == [
        "shout, version 1, answered",
        "  said: string [1, 1]",
        "    A",
    ]
