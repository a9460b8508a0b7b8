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

    def __call__(self, *words: str) -> Answer:
        answer = self.run("gc", *words, TMPDIR=str(self.scratch), PLANSMITH_SERVE_ENV=str(self.private))
        assert (answer.status, answer.stderr) == (0, ""), answer
        return answer

    def found(self, *words: str) -> dict[str, list[Path]]:
        """The paths by kind; without those of shared memory, which other programs' tests may leave."""
        paths: dict[str, list[Path]] = {}
        for one in self(*words, "--json").document["garbage"]:
            if not one["path"].startswith("/dev/shm"):
                paths.setdefault(one["kind"], []).append(Path(one["path"]))
        return paths


def age(*paths: Path, days: float) -> None:
    """Make files and folders, and all that lies in them, look last changed some days ago."""
    for path in paths:
        for one in (path, *path.rglob("*")):
            if not one.is_symlink():
                os.utime(one, (time.time() - days * DAY,) * 2)


@pytest.mark.slow
def test_nothing_of_a_fresh_compile_goes(collect: Collect) -> None:
    assert collect.found() == {}


@pytest.mark.slow
def test_a_dry_run_lists_what_would_go_and_changes_nothing(finished: Compiled, collect: Collect) -> None:
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
def test_what_was_used_within_the_limit_stays(finished: Compiled, collect: Collect) -> None:
    cache = finished.folder / "artifacts" / "cache"
    age(cache, days=31)
    assert collect.run(*finished.command).status == 0
    assert "cache entry" not in collect.found()
    age(cache, days=2)
    assert "cache entry" not in collect.found("--older-than", "49h")
    steps = {path.parent.name for path in collect.found("--older-than", "47h", "--dry-run")["cache entry"]}
    assert steps == {"export", "compile", "validate", "package"}


@pytest.mark.slow
def test_after_everything_went_the_version_still_stands_and_is_found_unchanged(
    finished: Compiled, collect: Collect
) -> None:
    view = listing(finished.folder / "artifacts" / "repository" / "tiny")
    assert collect.found("--older-than", "0")["cache entry"]
    assert not list((finished.folder / "artifacts" / "cache").glob("*/*/entry.json"))
    assert listing(finished.folder / "artifacts" / "repository" / "tiny") == view
    assert len(collect.run("history", "--json").document["runs"]) == 1
    again = collect.run(*finished.command, "--json").document
    assert (again["version"], again["unchanged"]) == (1, True)
    assert not any(step["cached"] for step in again["steps"] if step["name"] in {"export", "compile"})


@pytest.mark.slow
def test_only_bytes_without_another_link_count_as_freed(finished: Compiled, collect: Collect) -> None:
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
def test_a_damaged_entry_goes_whatever_its_age(finished: Compiled, collect: Collect) -> None:
    (engine,) = (finished.folder / "artifacts" / "cache").glob("compile/*/model.onnx")
    engine.chmod(0o644)
    engine.write_bytes(b"x" * engine.stat().st_size)
    (row,) = collect("--json").document["garbage"]
    assert (row["kind"], row["why"]) == ("cache entry", "model.onnx is damaged")
    assert not engine.parent.exists()


@pytest.mark.slow
def test_times_in_the_future_count_as_young(finished: Compiled, collect: Collect) -> None:
    age(finished.folder, days=-400)
    assert collect.found("--older-than", "0") == {}


@pytest.mark.slow
def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(finished: Compiled, collect: Collect) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    dead = [collect.scratch / f"plansmith-{gone.pid}-{name}" for name in ("0a1b2c3d-x", "validate-x.log")]
    alive = collect.scratch / f"plansmith-{os.getpid()}-0a1b2c3d-x"
    other = collect.scratch / "plansmith-notes"
    for folder in (dead[0], alive, other):
        folder.mkdir()
        (folder / "file").write_text("content")
    dead[1].write_text("log")
    examined = finished.folder / "artifacts" / f".plansmith-{gone.pid}-doctor-x"
    examined.mkdir()
    abandoned = [finished.folder / "artifacts" / "cache" / "staging" / "one", collect.private / ".staging" / "two"]
    for folder in abandoned:
        folder.mkdir(parents=True)
    assert collect.found() == {"leftover": [Path("artifacts/cache/staging/one"), abandoned[1]]}
    assert not [folder for folder in abandoned if folder.exists()]
    age(*dead, alive, other, examined, days=31)
    assert collect.found() == {"leftover": [examined.relative_to(finished.folder), *dead]}
    assert sorted(collect.scratch.iterdir()) == sorted([alive, other])


@pytest.mark.slow
def test_people_read_sizes_in_units_and_a_sum(finished: Compiled, collect: Collect) -> None:
    age(finished.folder / "artifacts" / "logs", days=31)
    *rows, total = collect("--dry-run").stdout.splitlines()
    assert any(row.startswith("  log") and " B  " in row for row in rows)
    assert total.endswith(" freed")
    assert " would be removed, " in total


@pytest.mark.slow
@pytest.mark.parametrize("given", ["soon", "3", "-1d", "1.5h", "30 d"])
def test_an_age_that_is_none_is_refused_with_examples(given: str, compiled: Compiled) -> None:
    answer = CommandLine(compiled.folder)("gc", "--older-than", given, "--json")
    check_refusal(answer, 2, (f"{given!r} is no age", "12h, 30d"))


@pytest.mark.slow
def test_a_repository_that_is_not_there_is_refused_where_it_was_named(compiled: Compiled) -> None:
    answer = CommandLine(compiled.folder)("gc", "--repository", "artifacts/repositry", "--dry-run", "--json")
    check_refusal(answer, 7, ("no repository artifacts/repositry", "artifacts/repository"))


def test_a_folder_that_is_not_there_is_refused(run: CommandLine) -> None:
    check_refusal(run("gc", "--json"), 7, ("artifacts is no folder", "--artifacts"))
    assert not list(run.folder.iterdir())
