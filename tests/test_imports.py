"""Starting is instant: what is heavy is imported when it is needed. Which module may import what: import_rules.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .support.source import PACKAGE, ROOT, heavy_libraries


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",), ("compile", "--help")], ids=" ".join)
def test_starting_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    start = ["-m", "plansmith", *arguments] if arguments else ["-c", "import plansmith"]
    done = subprocess.run(
        [sys.executable, *start],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "plansmith" in imported
    assert not (heavy_libraries() | {"numpy"}) & {name.partition(".")[0] for name in imported}
    assert not arguments or "pydantic" not in imported
    assert arguments[:1] != ("compile",) or "plansmith.cli.serve.serve" not in imported  # another command


def test_configurations_read_without_the_client(tmp_path: Path) -> None:
    """What reads and writes `config.pbtxt` needs Triton's messages, and not the client, gRPC and NumPy around them."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").touch()
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "python"')
    read = "from plansmith.cli import main; sys.argv[1:] = ['check', sys.argv[1], '--json']; main()"
    tell = "atexit.register(lambda: print(*sorted({'numpy', 'grpc', 'google'} & {*sys.modules}), file=sys.stderr))"
    done = subprocess.run(
        [sys.executable, "-c", f"import atexit, sys; {tell}; {read}", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.split() == ["google"]


PLANTED = {
    "records/planted.py": "import plansmith.steps.runner",
    "stores/planted.py": "def later():\n    from plansmith.client import TritonModel",
    "data/planted.py": "from plansmith.data import planted_too",
    "data/planted_too.py": "if TYPE_CHECKING:\n    from plansmith.data.planted import anything",
    "triton/planted.py": "def later():\n    from torch.nn import Module",
    "planted.py": "",
}


@pytest.mark.slow
def test_rules_find_what_is_planted(tmp_path: Path) -> None:
    """Backwards, sideways in a function, in a circle by types, a library out of its place, a module without a rank."""
    shutil.copytree(PACKAGE, tmp_path / "plansmith", ignore=shutil.ignore_patterns("__pycache__"))
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", str(ROOT / "import_rules.toml")]
    results = []
    for planted in ({}, PLANTED):
        for name, text in planted.items():
            (tmp_path / "plansmith" / name).write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        results.append(subprocess.run(lint, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False))
    assert [done.returncode for done in results] == [0, 1], results
    fragments = (
        *("plansmith.records is not allowed to import plansmith.steps", "plansmith.stores is not allowed to import"),
        *("No cycles are allowed in plansmith.data", "plansmith.triton.planted -> torch", "plansmith.planted"),
    )
    assert not [fragment for fragment in fragments if fragment not in results[1].stdout], results[1].stdout
