"""`plansmith zoo` as a person types it: the table, the page, the threshold, Ctrl-C, and going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.records import Zoo

from ...support.cli.command import Answer, CommandLine, check_refusal
from ...support.cli.interrupts import interrupt


def write_list(folder: Path, *entries: ZooEntry) -> None:
    values = {"models": [entry.model_dump(exclude_defaults=True) for entry in entries]}
    (folder / "list.yaml").write_text(yaml.safe_dump(values))


def zoo_of(answer: Answer) -> Zoo:
    return Zoo.model_validate(answer.document)


@pytest.mark.slow
def test_list_becomes_table_and_page(run_alone: CommandLine, bert: ZooEntry) -> None:
    """A list becomes a table a page and a verdict and is kept."""
    wrong = ZooEntry(name="misspelt", model_type="bert", architecture="BertForEverything")
    write_list(run_alone.folder, bert, wrong)
    first = run_alone("zoo", "list.yaml", "--html", "zoo.html", "--require", "0.9", "--jobs", "1")
    assert first.status == 5
    assert "1 of 2 entries are right, 90.0% were required" in first.message
    lines = first.stdout.splitlines()
    assert lines[0].split() == ["entry", "answers", "exporter", "axes", "move", "shapes", "time", "size"]
    assert lines[1].split()[:7] == ["bert", "BertForSequenceClassification", "right", "torchscript", "2", "of", "2"]
    assert lines[2].split()[:2] == ["misspelt", "none"]
    assert lines[3].startswith("    failed: saving the model: ")
    assert "has no class BertForEverything" in lines[3]
    log = Path(lines[4].removeprefix("    log: "))
    assert "BertForEverything" in (run_alone.folder / log).read_text()
    assert "transformers: 1 of 2 right (50.0%); 2 of 2 axes move (100.0%)" in first.stdout

    page = (run_alone.folder / "zoo.html").read_text()
    assert "1 of 2 right" in page
    assert "sequence (20; 1, 10, 16, 27, 30, 40, 96)" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page

    second = run_alone("zoo", "list.yaml", "--json", "--require", "0.5", "--require-axes", "1", "--only", "^bert")
    assert second.status == 0
    assert "kept" in second.stderr
    zoo = zoo_of(second)
    assert [row.outcome for row in zoo.rows] == ["right"]
    assert zoo.summary.total.moving == zoo.summary.total.axes == 2
    assert zoo.versions["torch"]


@pytest.mark.slow
def test_plain_exporters_shown_beside(run_alone: CommandLine) -> None:
    """Plain exporters are shown beside it."""
    write_list(run_alone.folder, ZooEntry(timm="starnet_s050"))
    answer = run_alone("zoo", "list.yaml", "--compare-bare", "--json", "--quiet", "--html", "zoo.html")
    assert answer.status == 0, answer
    assert not answer.stderr
    (row,) = zoo_of(answer).rows
    assert {bare.exporter for bare in row.bare} == {"dynamo", "torchscript"}
    assert all(bare.right == (not bare.problem) for bare in row.bare)
    assert "Bare dynamo" in (run_alone.folder / "zoo.html").read_text()


@pytest.mark.slow
def test_interrupted_zoo_run_can_go_on(run_alone: CommandLine, bert: ZooEntry) -> None:
    """An interrupt ends all processes, and the same command goes on."""
    write_list(run_alone.folder, bert, ZooEntry(timm="tresnet_m"))

    def one_is_finished(folder: Path) -> bool:
        return any(folder.glob("artifacts/zoo/*.json"))

    status, output, left = interrupt(["zoo", "list.yaml", "--jobs", "1"], run_alone.folder, one_is_finished)
    assert status == 130
    first, *others, last = output.splitlines()
    assert first.startswith("  right  bert BertForSequenceClassification")
    assert [line for line in others if line] == ["  1 of 2 entries are finished"]
    assert last == "plansmith: interrupted; run the same command again to go on after what is finished"
    assert not left
    again = run_alone("zoo", "list.yaml", "--only", "^bert", "--json")
    assert [row.outcome for row in zoo_of(again).rows] == ["right"]
    assert "kept" in again.stderr


def test_interrupted_start_makes_no_row(run_alone: CommandLine, bert: ZooEntry) -> None:
    """An interrupt that meets a process as it starts makes no row of it."""
    write_list(run_alone.folder, bert)

    def one_begins(folder: Path) -> bool:
        return any(folder.glob("artifacts/zoo/logs/*.log"))

    status, output, left = interrupt(["zoo", "list.yaml"], run_alone.folder, one_begins)
    assert (status, left) == (130, [])
    assert output.startswith("  0 of 1 entries are finished")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none.yaml",), "cannot read none.yaml"),
        (("--only", "gpt5"), "names are like bert BertForSequenceClassification"),
        (("list.yaml", "--only", "gpt"), "no name holds a match of 'gpt'"),
        (("list.yaml", "--require", "98"), "98.0 is not in the range 0<=x<=1"),
    ],
)
def test_unrunnable_list_refused(run_alone: CommandLine, bert: ZooEntry, words: tuple[str, ...], says: str) -> None:
    """What cannot be run is refused."""
    write_list(run_alone.folder, bert)
    check_refusal(run_alone("zoo", *words, "--json"), 2, (says,))
    assert json.loads(run_alone("zoo", *words, "--json").stdout)["exit_code"] == 2
