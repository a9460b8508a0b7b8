"""A model that somebody writes to while it is compiled is not compiled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.cli.command import CommandLine, check_nothing_made, check_refusal

pytestmark = pytest.mark.slow

# Waits for the worker, which starts when the source has been read once, and then exchanges one file again and again
# for one with another content: whole at any moment, as a good writer does it, or byte by byte in place.
_WRITER = """
import itertools, os, pathlib, sys, time
folder, file = map(pathlib.Path, sys.argv[1:])
content = file.read_bytes()
while not any(folder.glob("artifacts/logs/*-worker.log")):
    time.sleep(0.005)
for number in itertools.count():
    if file.suffix == ".json":
        new = content.rstrip()[:-1] + b', "note": %d}' % number
    else:
        new = content[:-1] + bytes([number % 251])
    part = file.with_suffix(".part")
    part.write_bytes(new)
    os.replace(part, file)
    time.sleep(0.02)
"""


@pytest.mark.parametrize("file", ["config.json", pytest.param("model.safetensors", marks=pytest.mark.slow)])
def test_changing_source_publishes_nothing(file: str, run: CommandLine, models: Path) -> None:
    """A source that changes while it is read publishes nothing."""
    shutil.copytree(models / "bert", run.folder / "bert")
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, run.folder, run.folder / "bert" / file])
    try:
        answer = run("compile", "hf:bert", "--no-check-served", "--json")
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    check_refusal(answer, 3, ("bert changed while it was read", "wait until it is written, and run again"))
    check_nothing_made(run.folder)
    assert not list(run.folder.glob("artifacts/cache/export/*"))
    last = run("history", "--json").document["runs"][0]
    assert (last["outcome"], last["failure"]["exit_code"]) == ("failed", 3)
    if file == "config.json":
        quiet = run("compile", "hf:bert", "--no-check-served", "--json")
        assert (quiet.status, quiet.document["version"]) == (0, 1), quiet
        stated = json.loads(Path(quiet.document["manifest"]).read_text())
        assert stated["source"]["location"] == os.fspath(run.folder / "bert")
