"""Sessions of the documentation: the commands of a page are run, and what they print is held against the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType

from ..documentation import ROOT, code_blocks, section
from ..real_sentences import real_sentences

_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)
_FIGURE = re.compile(r"\b[0-9a-f]{8,64}\b|\d[\d.,]*(?:e-\d+)?(?: (?:[KMG]iB|ms|s)\b)?| +")
"""Digests, numbers with the units that follow from their size, and the widths of columns."""
_REFUSED = "plansmith: "


def lay_out_text_model(folder: Path, minilm: Path) -> None:
    """Put into a folder what most pages start from: a model as ./all-MiniLM-L6-v2, and sentences."""
    (folder / "all-MiniLM-L6-v2").symlink_to(minilm)
    (folder / "sentences.txt").write_text("\n".join(real_sentences()))


def plansmith(folder: Path, *arguments: str) -> None:
    """Run a command that a page takes for granted."""
    subprocess.run([sys.executable, "-m", "plansmith", *arguments, "--quiet"], cwd=folder, check=True)


def follow(
    page: str,
    folder: Path,
    replaced: Mapping[str, str] = MappingProxyType({}),
    headings: Iterable[str] = (),
    failing: tuple[str, ...] = (),
) -> str:
    """Run the ```console blocks of a page in one shell, and compare the lines that it shows, figures and digests aside.

    YAML that begins with a comment of a file's name is written to that file first. A command that the page shows
    refused (`plansmith: …`) has to fail, every other one has to succeed.

    Args:
        page: path below the repository's root.
        folder: where the commands are run.
        replaced: what stands on the page, such as the address of a server, and what is used instead.
        headings: sections that are run; the whole page by default.
        failing: how commands begin that have to fail, although they print a result.

    Returns:
        What the commands printed.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    text = "\n".join(section(text, heading) for heading in headings) or text
    text = reduce(lambda written, pair: written.replace(*pair), replaced.items(), text)
    for block in code_blocks(text, "yaml"):
        if named := re.match(r"# (\S+)\n", block):
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
    steps = [found.groups() for block in code_blocks(text, "console") for found in _COMMAND.finditer(block)]
    assert steps, f"{page} has no commands"
    commands = [
        f"if {command}\nthen exit 99; fi" if output.startswith(_REFUSED) or command.startswith(failing) else command
        for command, output in steps
    ]
    printed = _run(commands, folder)
    shown = [line.strip() for _, output in steps for line in output.splitlines() if "…" not in line]
    missing = [line for line in shown if _FIGURE.sub("#", line) not in _FIGURE.sub("#", printed)]
    assert not missing, f"{page} shows {missing}; printed was:\n{printed}"
    return printed


def _run(commands: list[str], folder: Path) -> str:
    """Run commands in one shell, until one fails, and return all that they print."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(["exec 2>&1", *commands])],
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
    return done.stdout
