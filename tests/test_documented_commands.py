"""Every command that a page or a help text shows can be typed: click parses it, and nothing runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from plansmith.cli import cli

from .support.documentation import DOCUMENTS, ROOT, all_blocks, commands_in, read_page, table, without_code

SHELL = ("", "console")
FILES = ("ca.crt", "lan.pem", "release.crt", "release.pem")
"""Files of the examples that an option wants to be there."""
PLACEHOLDERS = re.compile(r"\[[^]]*\]|…|\bID\b")
"""What a sentence shows in place of a value; any of them could be a number."""
FOREIGN = {"--model-control-mode", "--grpc-restricted-protocol", "--model-repository", "--all", "--quick"}
"""Options of Triton, Prefect and the benchmarks that pages name by themselves."""


def all_commands(command: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield names, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from all_commands(inner, *names, name)


def inline_codes(path: Path) -> list[str]:
    """The inline code of a page."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", without_code(path.read_text(encoding="utf-8")))]


def options_of(command: click.Command) -> set[str]:
    return {"--help"}.union(*((*option.opts, *option.secondary_opts) for option in command.params))


def shown_commands() -> dict[str, str]:
    """Whole commands, as they are typed after `plansmith`, by a place that shows them."""
    shown: dict[str, str] = {}
    for block in all_blocks():
        if block.language in SHELL:
            shown |= {
                shlex.join(words): block.place for words in commands_in(block.code) if words[0].endswith("plansmith")
            }
    for names, command in all_commands(cli):
        for line in f"{command.help}\n{command.epilog}".splitlines():
            if re.match(r" +plansmith [a-z]", line):
                shown |= {shlex.join(words): " ".join((*names, "--help")) for words in commands_in(line.strip())}
    return shown


def parse(words: list[str]) -> None:
    """Parse a command without running it."""
    context: click.Context | None = None
    command: click.Command | None = cli
    while command is not None:
        context = command.make_context(words[0], words[1:], parent=context)
        if not isinstance(command, click.Group) or not (rest := [*context._protected_args, *context.args]):
            break
        _, command, arguments = command.resolve_command(context, rest)
        words = [rest[0], *arguments]


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).touch()
    return []


def test_shown_commands_parse(faults: list[str]) -> None:
    """A command in a block or in a help text has known options, right choices and all arguments."""
    shown = shown_commands()
    assert len(shown) > 250
    for line, place in shown.items():
        try:
            parse(shlex.split(line))
        except click.UsageError as error:
            faults.append(f"{place}: {line}: {error.format_message()}")
    assert faults == []


def test_inline_commands_parse(faults: list[str]) -> None:
    """A command in a sentence has known options and right choices; what it is about may be left out."""
    for path in DOCUMENTS:
        for code in inline_codes(path):
            if not code.startswith("plansmith "):
                continue
            (words,) = commands_in(PLACEHOLDERS.sub("1", code))
            try:
                with suppress(click.MissingParameter, click.exceptions.NoArgsIsHelpError, click.exceptions.Exit):
                    parse(words)
            except click.UsageError as error:
                faults.append(f"{path.name}: {code}: {error.format_message()}")
    assert faults == []


def test_options_exist() -> None:
    """An option that a sentence names by itself is one of some command; in the reference, of that of its row."""
    commands = {" ".join(("plansmith", *names)): options_of(command) for names, command in all_commands(cli)}
    known = FOREIGN.union(*commands.values())
    named = re.compile(r"(?<!\S)--[a-z][a-z0-9-]*")
    faults = [
        f"{path.name}: {option}"
        for path in DOCUMENTS
        for code in inline_codes(path)
        if not code.startswith("plansmith ")
        for option in named.findall(code)
        if option not in known
    ]
    for shown, text in table(read_page("reference"), "command"):
        known = set().union(*(commands[longest(code, commands)] for code in re.findall(r"`(plansmith [^`]+)`", shown)))
        wrong = set(named.findall(" ".join(re.findall(r"`([^`]+)`", text)))) - known
        faults += [f"reference.md: {shown}: {option}" for option in sorted(wrong)]
    assert faults == []


def longest(code: str, commands: dict[str, set[str]]) -> str:
    """The command that a row of the reference is about."""
    return max((name for name in commands if f"{code} ".startswith(f"{name} ")), key=len)


def test_other_commands_are_known() -> None:
    """What is no command of plansmith is one of a known program; modules that it runs are there."""
    programs = {"plansmith", "pip", "prefect", "export", "createdb", "docker", "curl", ".venv/bin/python"}
    programs |= {"openssl", "python", "sha256sum"}
    blocks = [block for block in all_blocks() if block.language in SHELL]
    assert {words[0] for block in blocks for words in commands_in(block.code)} == programs
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    modules = {name.replace(".", "/") for name in re.findall(r"python -m ((?:benchmarks|tests)\.[\w.]+)", text)}
    assert [
        name for name in modules if not ((ROOT / f"{name}.py").exists() or (ROOT / name / "__main__.py").exists())
    ] == []
