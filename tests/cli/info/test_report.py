"""`plansmith report`: every release has its page, and it can be written anew or read as JSON."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat

import pytest

from ...support.cli.command import CommandLine, Refused, check_refusal
from ..conftest import Compiled

pytestmark = pytest.mark.slow

RELEASE = "artifacts/repository.plansmith/releases/tiny/1"


def test_release_holds_its_report(compiled: Compiled) -> None:
    """A release holds its report and the command names it."""
    answer = CommandLine(compiled.folder)("report", "tiny")
    assert (answer.status, answer.stderr) == (0, "")
    path = compiled.release / "report.html"
    assert answer.stdout.strip() == str(path)
    page = path.read_text(encoding="utf-8")
    assert "<title>Passed: tiny, version 1</title>" in page
    assert compiled.document["manifest"].endswith("tiny/1/manifest.json")
    assert "logits" in page
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_folder_and_stdout_accepted(compiled: Compiled, run: CommandLine) -> None:
    """A folder is as good as a name, and standard output as good as a file."""
    printed = CommandLine(compiled.folder)("report", RELEASE, "--output", "-")
    assert (printed.status, printed.stderr) == (0, "")
    assert printed.stdout == (compiled.release / "report.html").read_text(encoding="utf-8")
    named = run("report", "tiny@1", "--repository", compiled.folder / "artifacts" / "repository", "--output", "r.html")
    assert (named.status, named.stdout, named.stderr) == (0, "r.html\n", "")
    assert (run.folder / "r.html").read_text(encoding="utf-8") == printed.stdout


def test_verdict_comes_first_in_json(compiled: Compiled) -> None:
    """The JSON document has the verdict first and everything else after it."""
    answer = CommandLine(compiled.folder)("report", "tiny", "--json")
    assert (answer.status, answer.stderr) == (0, "")
    document = answer.document
    assert list(document)[:4] == ["release", "report", "verdict", "failures"]
    assert (document["verdict"], document["failures"]) == ("passed", [])
    assert document["report"] == str(compiled.release / "report.html")
    manifest = json.loads((compiled.release / "manifest.json").read_text())
    for name in ("name", "version", "validation", "source", "files", "steps", "spec", "release_digest"):
        assert document[name] == manifest[name]


def test_force_replaces_existing_file(compiled: Compiled, run: CommandLine) -> None:
    """A file that is there is replaced only with --force."""
    (run.folder / "r.html").write_text("mine")
    command = ("report", compiled.release, "--output", "r.html")
    check_refusal(run(*command, "--json"), 2, ("r.html is there already", "--force"))
    assert (run.folder / "r.html").read_text() == "mine"
    answer = run(*command, "--force", "--json")
    assert answer.document["report"] == "r.html"
    assert (run.folder / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_old_release_gets_report(finished: Compiled, run: CommandLine) -> None:
    """A release from before there were reports gets one from its manifest."""
    (finished.release / "report.html").unlink()
    refused = run("report", "tiny")
    assert (refused.status, refused.stdout) == (7, "")
    assert "tiny/1 holds no report" in refused.message
    assert "\nNext: pass --output report.html" in refused.message
    assert run("report", "tiny", "--json").document["report"] is None
    assert run("report", "tiny", "--output", "report.html").status == 0
    assert "Passed" in (run.folder / "report.html").read_text(encoding="utf-8")


def test_unreportable_input_refused(finished: Compiled, run: CommandLine) -> None:
    """A release that cannot be reported on is refused."""
    shutil.copytree(finished.release, run.folder / "broken")
    (run.folder / "broken" / "manifest.json").write_text("{")
    for case in (
        Refused(("report", "other"), 7, ("has no model 'other'", "choose from: tiny")),
        Refused(("report", "tiny@7"), 7, ("tiny has no version '7'", "its versions: 1")),
        Refused(("report", "broken"), 7, ("broken/manifest.json is damaged", "compile the model again")),
        Refused(("report", "tiny", "--output", "-"), 2, ("both want standard output", "one of the two")),
        Refused(
            ("report", "tiny", "--output", "no/such/r.html"), 2, ("cannot write no/such/r.html", "another --output")
        ),
    ):
        check_refusal(run(*case.arguments, "--json"), case.status, case.says)


def test_repeated_compile_keeps_report(finished: Compiled, run: CommandLine) -> None:
    """The same compile again changes neither version nor report."""
    report = finished.release / "report.html"
    before = (hashlib.sha256(report.read_bytes()).hexdigest(), report.stat().st_mtime_ns)
    answer = run(*finished.command, "--json")
    assert answer.status == 0, answer
    assert (answer.document["unchanged"], answer.document["version"]) == (True, 1)
    assert (hashlib.sha256(report.read_bytes()).hexdigest(), report.stat().st_mtime_ns) == before
