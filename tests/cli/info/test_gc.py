"""What `plansmith gc` lists, what it takes away, and what it never touches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ...support.cli.command import Answer, CommandLine, check_refusal, listing
from ..conftest import Compiled

DAY = 86400


@pytest.fixture
def collect(finished: Compiled, run_alone: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Collect:
    """`plansmith gc` where `finished` lies, with temporary files in a folder of its own."""
    assert finished.folder == run_alone.folder
    return Collect(run_alone, tmp_path_factory.mktemp("scratch"))


class Collect:
    """Runs `plansmith gc`.

    Args:
        run: the command line.
        scratch: where temporary files are looked for.
    """

    def __init__(self, run: CommandLine, scratch: Path) -> None:
        self.run, self.scratch, self.private = run, scratch, run.folder / "serve-env"

    def __call__(self, *arguments: str) -> Answer:
        answer = self.run("gc", *arguments, TMPDIR=str(self.scratch), PLANSMITH_SERVE_ENV=str(self.private))
        assert (answer.status, answer.stderr) == (0, ""), answer
        return answer

    def garbage_paths(self, *arguments: str) -> dict[str, list[Path]]:
        """The paths by kind; without those of shared memory, which other programs' tests may leave."""
        paths: dict[str, list[Path]] = {}
        for entry in self(*arguments, "--json").document["garbage"]:
            if not entry["path"].startswith("/dev/shm"):
                paths.setdefault(entry["kind"], []).append(Path(entry["path"]))
        return paths


def age(*paths: Path, days: float) -> None:
    """Make files and folders, and all that lies in them, look last changed some days ago."""
    for path in paths:
        for entry in (path, *path.rglob("*")):
            if not entry.is_symlink():
                os.utime(entry, (time.time() - days * DAY,) * 2)


@pytest.mark.slow
def test_fresh_compile_is_kept(collect: Collect) -> None:
    """Nothing of a fresh compile is removed."""
    assert collect.garbage_paths() == {}


@pytest.mark.slow
def test_dry_run_changes_nothing(finished: Compiled, collect: Collect) -> None:
    """A dry run lists what would be removed and changes nothing."""
    age(finished.folder / "artifacts" / "cache", days=31)
    age(finished.folder / "artifacts" / "logs", days=31)
    before = listing(finished.folder, folder_times=True)
    dry = collect("--dry-run", "--json").document
    assert listing(finished.folder, folder_times=True) == before
    assert dry["dry_run"]
    assert {row["kind"] for row in dry["garbage"]} >= {"cache entry", "log"}
    done = collect("--json").document
    assert (done["garbage"], done["freed_bytes"]) == (dry["garbage"], dry["freed_bytes"])
    assert not list((finished.folder / "artifacts" / "logs").iterdir())


@pytest.mark.slow
def test_recently_used_entries_stay(finished: Compiled, collect: Collect) -> None:
    """What was used within the limit stays."""
    cache = finished.folder / "artifacts" / "cache"
    age(cache, days=31)
    assert collect.run(*finished.command).status == 0
    assert "cache entry" not in collect.garbage_paths()
    age(cache, days=2)
    assert "cache entry" not in collect.garbage_paths("--older-than", "49h")
    steps = {path.parent.name for path in collect.garbage_paths("--older-than", "47h", "--dry-run")["cache entry"]}
    assert steps == {"export", "compile", "validate", "package"}


@pytest.mark.slow
def test_emptied_cache_keeps_version(finished: Compiled, collect: Collect) -> None:
    """After everything was removed, the version still stands and is found unchanged."""
    view = listing(finished.folder / "artifacts" / "repository" / "tiny")
    assert collect.garbage_paths("--older-than", "0")["cache entry"]
    assert not list((finished.folder / "artifacts" / "cache").glob("*/*/entry.json"))
    assert listing(finished.folder / "artifacts" / "repository" / "tiny") == view
    assert len(collect.run("history", "--json").document["runs"]) == 1
    again = collect.run(*finished.command, "--json").document
    assert (again["version"], again["unchanged"]) == (1, True)
    assert not any(step["cached"] for step in again["steps"] if step["name"] in {"export", "compile"})


@pytest.mark.slow
def test_only_unlinked_bytes_count(finished: Compiled, collect: Collect) -> None:
    """Only bytes without another link count as freed."""
    cache = finished.folder / "artifacts" / "cache"
    (engine,) = cache.glob("compile/*/model.onnx")
    (packaged,) = cache.glob("package/*/model/model.onnx")
    released = finished.release / "model" / "model.onnx"
    for path in (packaged, released):
        path.unlink()
        path.hardlink_to(engine)
    rows = collect("--older-than", "0", "--dry-run", "--json").document["garbage"]
    freed = {Path(row["path"]).parent.name: row["bytes"] for row in rows if row["kind"] == "cache entry"}
    assert freed["compile"] == (engine.parent / "entry.json").stat().st_size
    released.unlink()
    rows = collect("--older-than", "0", "--dry-run", "--json").document["garbage"]
    both = sum(row["bytes"] for row in rows if Path(row["path"]).parent.name in {"compile", "package"})
    files = {path.stat().st_ino: path.stat().st_size for path in cache.glob("[cp]*/*/**/*") if path.is_file()}
    assert both == sum(files.values())


@pytest.mark.slow
def test_damaged_entry_always_goes(finished: Compiled, collect: Collect) -> None:
    """A damaged entry goes, whatever its age."""
    (engine,) = (finished.folder / "artifacts" / "cache").glob("compile/*/model.onnx")
    engine.chmod(0o644)
    engine.write_bytes(b"x" * engine.stat().st_size)
    (row,) = collect("--json").document["garbage"]
    assert (row["kind"], row["why"]) == ("cache entry", "model.onnx is damaged")
    assert not engine.parent.exists()


@pytest.mark.slow
def test_future_times_count_as_young(finished: Compiled, collect: Collect) -> None:
    """Times in the future count as young."""
    age(finished.folder, days=-400)
    assert collect.garbage_paths("--older-than", "0") == {}


@pytest.mark.slow
def test_dead_leftovers_go(finished: Compiled, collect: Collect) -> None:
    """Leftovers of dead processes go, and those of living ones stay."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    dead = [collect.scratch / f"plansmith-{process.pid}-{name}" for name in ("0a1b2c3d-x", "validate-x.log")]
    alive = collect.scratch / f"plansmith-{os.getpid()}-0a1b2c3d-x"
    unrelated = collect.scratch / "plansmith-notes"
    for folder in (dead[0], alive, unrelated):
        folder.mkdir()
        (folder / "file").write_text("content")
    dead[1].write_text("log")
    examined = finished.folder / "artifacts" / f".plansmith-{process.pid}-doctor-x"
    examined.mkdir()
    abandoned = [finished.folder / "artifacts" / "cache" / "staging" / "one", collect.private / ".staging" / "two"]
    for folder in abandoned:
        folder.mkdir(parents=True)
    assert collect.garbage_paths() == {"leftover": [Path("artifacts/cache/staging/one"), abandoned[1]]}
    assert not [folder for folder in abandoned if folder.exists()]
    age(*dead, alive, unrelated, examined, days=31)
    assert collect.garbage_paths() == {"leftover": [examined.relative_to(finished.folder), *dead]}
    assert sorted(collect.scratch.iterdir()) == sorted([alive, unrelated])


@pytest.mark.slow
def test_sizes_shown_in_units(finished: Compiled, collect: Collect) -> None:
    """People read sizes in units and a sum."""
    age(finished.folder / "artifacts" / "logs", days=31)
    *rows, total = collect("--dry-run").stdout.splitlines()
    assert any(row.startswith("  log") and " B  " in row for row in rows)
    assert total.endswith(" freed")
    assert " would be removed, " in total


@pytest.mark.slow
@pytest.mark.parametrize("age", ["soon", "3", "-1d", "1.5h", "30 d"])
def test_wrong_age_refused(age: str, compiled: Compiled) -> None:
    """A value that is no age is refused with examples."""
    answer = CommandLine(compiled.folder)("gc", "--older-than", age, "--json")
    check_refusal(answer, 2, (f"{age!r} is no age", "12h, 30d"))


@pytest.mark.slow
def test_missing_repository_refused(compiled: Compiled) -> None:
    """A repository that is not there is refused where it was named."""
    answer = CommandLine(compiled.folder)("gc", "--repository", "artifacts/repositry", "--dry-run", "--json")
    check_refusal(answer, 7, ("no repository artifacts/repositry", "artifacts/repository"))


def test_missing_folder_refused(run: CommandLine) -> None:
    """A folder that is not there is refused."""
    check_refusal(run("gc", "--json"), 7, ("artifacts is no folder", "--artifacts"))
    assert not list(run.folder.iterdir())
