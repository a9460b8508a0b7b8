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


def test_a_release_holds_its_report_and_the_command_names_it(compiled: Compiled) -> None:
    answer = CommandLine(compiled.folder)("report", "tiny")
    assert (answer.status, answer.stderr) == (0, "")
    path = compiled.release / "report.html"
    assert answer.stdout.strip() == str(path)
    page = path.read_text(encoding="utf-8")
    assert "<title>Passed: tiny, version 1</title>" in page
    assert compiled.document["manifest"].endswith("tiny/1/manifest.json")
    assert "logits" in page
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_folder_is_as_good_as_a_name_and_standard_output_as_a_file(compiled: Compiled, run: CommandLine) -> None:
    printed = CommandLine(compiled.folder)("report", RELEASE, "--output", "-")
    assert (printed.status, printed.stderr) == (0, "")
    assert printed.stdout == (compiled.release / "report.html").read_text(encoding="utf-8")
    named = run("report", "tiny@1", "--repository", compiled.folder / "artifacts" / "repository", "--output", "r.html")
    assert (named.status, named.stdout, named.stderr) == (0, "r.html\n", "")
    assert (run.folder / "r.html").read_text(encoding="utf-8") == printed.stdout


def test_the_json_document_has_the_verdict_first_and_everything_else_after_it(compiled: Compiled) -> None:
    answer = CommandLine(compiled.folder)("report", "tiny", "--json")
    assert (answer.status, answer.stderr) == (0, "")
    document = answer.document
    assert list(document)[:4] == ["release", "report", "verdict", "failures"]
    assert (document["verdict"], document["failures"]) == ("passed", [])
    assert document["report"] == str(compiled.release / "report.html")
    manifest = json.loads((compiled.release / "manifest.json").read_text())
    for name in ("name", "version", "validation", "source", "files", "steps", "spec", "release_digest"):
        assert document[name] == manifest[name]


def test_a_file_that_is_there_is_replaced_with_force_only(compiled: Compiled, run: CommandLine) -> None:
    (run.folder / "r.html").write_text("mine")
    words = ("report", compiled.release, "--output", "r.html")
    check_refusal(run(*words, "--json"), 2, ("r.html is there already", "--force"))
    assert (run.folder / "r.html").read_text() == "mine"
    answer = run(*words, "--force", "--json")
    assert answer.document["report"] == "r.html"
    assert (run.folder / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_release_of_before_reports_gets_one_from_its_manifest(finished: Compiled, run: CommandLine) -> None:
    (finished.release / "report.html").unlink()
    refused = run("report", "tiny")
    assert (refused.status, refused.stdout) == (7, "")
    assert "tiny/1 holds no report" in refused.message
    assert "\nNext: pass --output report.html" in refused.message
    assert run("report", "tiny", "--json").document["report"] is None
    assert run("report", "tiny", "--output", "report.html").status == 0
    assert "Passed" in (run.folder / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_told_of_is_refused(finished: Compiled, run: CommandLine) -> None:
    shutil.copytree(finished.release, run.folder / "broken")
    (run.folder / "broken" / "manifest.json").write_text("{")
    for case in (
        Refused(("report", "other"), 7, ("has no model 'other'", "its models: tiny")),
        Refused(("report", "tiny@7"), 7, ("tiny has no version '7'", "its versions: 1")),
        Refused(("report", "broken"), 7, ("broken/manifest.json is damaged", "compile the model again")),
        Refused(("report", "tiny", "--output", "-"), 2, ("both want standard output", "one of the two")),
        Refused(
            ("report", "tiny", "--output", "no/such/r.html"), 2, ("cannot write no/such/r.html", "another --output")
        ),
    ):
        check_refusal(run(*case.words, "--json"), case.status, case.says)


def test_the_same_compile_again_changes_neither_version_nor_report(finished: Compiled, run: CommandLine) -> None:
    report = finished.release / "report.html"
    before = (hashlib.sha256(report.read_bytes()).hexdigest(), report.stat().st_mtime_ns)
    answer = run(*finished.command, "--json")
    assert answer.status == 0, answer
    assert (answer.document["unchanged"], answer.document["version"]) == (True, 1)
    assert (hashlib.sha256(report.read_bytes()).hexdigest(), report.stat().st_mtime_ns) == before


def test_a_version_made_by_force_has_a_report_with_its_own_number(finished: Compiled, run: CommandLine) -> None:
    answer = run(*finished.command, "--force", "--json")
    assert answer.document["version"] == 2
    page = (finished.release.parent / "2" / "report.html").read_text(encoding="utf-8")
    assert "<title>Passed: tiny, version 2</title>" in page
