"""The commands of the page on stores, typed as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.store import Store

from ..support.cli.in_process import InProcess
from ..support.documentation import code_blocks, read_page, section
from ..support.stores.filled import fill, report_live

PLACE = "s3://models/prod"

# What hangs on the model and the moment: times, sizes, counts, how it was compiled; the width of a column with it.
_PASSING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "<time>"),
    (re.compile(r"[\d.]+ ([KM]i)?B"), "<size>"),
    (re.compile(r"\d+ files"), "<files>"),
    (re.compile(r"\b(fp32|int8)\b"), "<precision>"),
    (re.compile(r" {2,}"), "  "),
)


def plain(text: str) -> list[str]:
    """Lines without what passes."""
    for pattern, word in _PASSING:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.splitlines()]


def typed() -> list[tuple[list[str], list[str]]]:
    """The commands of the section's first block, and what each is said to print."""
    block = code_blocks(section(read_page("stores"), "Versions and aliases"), "")[0].strip()
    first, *commands = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    assert first == f"export PLANSMITH_STORE={PLACE}\n"
    session = []
    for command in commands:
        line, _, printed = command.partition("\n")
        program, *arguments = shlex.split(line)
        assert program == "plansmith"
        session.append((arguments, plain(printed)))
    return session


def test_store_commands_print_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Commands on a store print what the page says."""
    store = Store(FolderObjects(tmp_path / "store"))
    fill(store, tmp_path, 3, model="minilm")
    store.promote("minilm", 2, "champion")
    store.promote("minilm", 2, "current")
    store.promote("minilm", 3, "canary", 0.1)
    store.pin("minilm", 1, "audit of March")
    report_live(store, 2, model="minilm")
    run = InProcess(tmp_path, monkeypatch, capfd)
    monkeypatch.setenv("PLANSMITH_STORE", "store")
    commands = typed()
    assert [arguments[0] for arguments, _ in commands] == ["versions", "promote", "rollback", "pin", "verify"]
    for arguments, printed in commands:
        answer = run(*arguments)
        assert (answer.status, answer.stderr) == (0, "")
        assert plain(answer.stdout.replace(store.place, PLACE)) == printed
