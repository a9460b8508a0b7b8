"""The commands of the page on stores, typed as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from plansmith.cli.store import versions
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.diff import Difference, differences, side_of_folder
from plansmith.stores.store import Store

from ..support.cli.in_process import InProcess
from ..support.documentation import code_blocks, read_page, section
from ..support.stores.filled import fill, report_live
from ..support.stores.releases import make_release

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


def typed(heading: str, block: int) -> list[tuple[list[str], list[str]]]:
    """The commands of a block of a section, and what each is said to print."""
    code = code_blocks(section(read_page("stores"), heading), "console")[block].strip()
    session = []
    for command in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        line, _, printed = command.partition("\n")
        program, *arguments = shlex.split(line)
        assert program in {"plansmith", "export"}
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
    (variable, _), *commands = typed("Versions and aliases", 0)
    assert variable == [f"PLANSMITH_STORE={PLACE}"]
    assert [arguments[0] for arguments, _ in commands] == ["versions", "promote", "rollback", "pin", "verify"]
    for arguments, printed in commands:
        answer = run(*arguments)
        assert (answer.status, answer.stderr) == (0, "")
        assert plain(answer.stdout.replace(store.place, PLACE)) == printed


def test_publish_prints_documented_output(run: InProcess) -> None:
    """Publishing prints what the page says, with the number that the release has."""
    for number in (1, 2, 3):
        make_release(run.folder / "artifacts" / "repository", number, model="minilm")
    for arguments, printed in typed("Publishing", 0):
        store = f"store-of-{arguments[1]}"
        place = arguments[2]
        answer = run(*(store if argument == place else argument for argument in arguments), "--quiet")
        assert plain(answer.stdout.replace(str(run.folder / store), place)) == printed


def test_diff_prints_documented_output(tmp_path: Path) -> None:
    """A comparison has the sections that the page shows, in its words."""
    ((_, printed),) = typed("Versions and aliases", 1)
    release = make_release(tmp_path / "repository", model="minilm")
    same = differences(*(side_of_folder(release.folder, f"minilm@{number}") for number in (1, 2)))
    cpu = "ONNX Runtime 1.31.1 on CPU, stand-in backend"
    speed = Difference(
        what="median of the served check", old=f"115 ms ({cpu})", new="78.2 ms (…)", old_value=115, new_value=78.2
    )
    delay = Difference(what="triton.dynamic_batching.max_queue_delay_microseconds", old="500", new="200")
    sections = same.sections | {"speed": (speed,), "spec": (delay,)}
    changed = same.model_copy(update={"sections": sections, "config": ("@@ -40,5 +40,5 @@", "…")})
    assert plain("\n".join(versions._difference_lines(changed))) == printed
