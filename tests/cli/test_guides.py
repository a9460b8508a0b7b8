"""The guides are run as they are written, one after the other, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.documentation import PAGES, code_blocks
from ..support.real_sentences import real_sentences

pytestmark = [pytest.mark.slow, pytest.mark.services]

GUIDES = ("text-model", "accurate-int8", "load-test", "store", "fleet")
"""Those that need neither a hub nor a GPU nor anybody's server; the later ones use what the first one made."""

FIGURE = re.compile(r"\d[\d.,]*(?:e-\d+)?| +")


@pytest.mark.timeout(1800)
def test_guides_run_as_written(tmp_path: Path, minilm_folder: Path) -> None:
    """Each command ends well, and prints the lines that its guide shows, figures aside."""
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(minilm_folder)
    (tmp_path / "sentences.txt").write_text("\n".join(real_sentences()))
    for guide in GUIDES:
        text = (PAGES / "guides" / f"{guide}.md").read_text(encoding="utf-8")
        for spec in code_blocks(text, "yaml"):
            path = tmp_path / spec.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(spec)
        printed = _run("\n".join(code_blocks(text, "console")), tmp_path)
        missing = [line for line in _shown(text) if FIGURE.sub("#", line) not in FIGURE.sub("#", printed)]
        assert not missing, f"{guide} shows {missing}; printed was:\n{printed}"


def _run(session: str, folder: Path) -> str:
    """Run the commands of a session in one shell, and return all that they print."""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", session, re.MULTILINE)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join(["exec 2>&1", *commands]),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _shown(text: str) -> list[str]:
    """The lines of output that a guide shows, without those that leave something out."""
    lines = "\n".join(code_blocks(text, "console")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if not line.startswith("$ ") and "…" not in line]
