"""What earlier builds measured: kept per kind of GPU and build, whole, and by nobody lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from plansmith.compilers.trt.timing_cache import MOST_FILES, Key, Loan, TimingCaches, key_of
from plansmith.fleet.maintenance.garbage import Collector, Limits
from plansmith.records.engine import BuildFlags, Gpu
from plansmith.steps.cache.local import StageCache
from plansmith.system.digest import Digester

A100 = Gpu(
    name="NVIDIA A100-SXM4-80GB",
    compute_capability="8.0",
    memory_bytes=80 << 30,
    uuid="GPU-1",
    index=1,
    driver="570.124.06",
)
PLAIN = BuildFlags()
EDITABLE = BuildFlags(editable_timing_cache=True)
STRICT = BuildFlags(error_on_timing_cache_miss=True)
KEY = key_of("10.16.1.11", A100, PLAIN)


@pytest.fixture
def caches(tmp_path: Path) -> TimingCaches:
    return TimingCaches(tmp_path / "cache" / "timing")


def loan_text(loan: Loan) -> str:
    return loan.file.read_text() if loan.file.exists() else ""


def measure(caches: TimingCaches, entry: str, *, flags: BuildFlags = PLAIN, key: Key = KEY) -> tuple[str, ...]:
    """A build that adds an entry to what it finds; the warnings that it got."""
    with caches.lent(key, flags) as loan:
        loan.file.write_text(f"{loan_text(loan)}{entry} ")
        caches.take_back(key, loan)
    return loan.warnings


def lent_texts(caches: TimingCaches, *, flags: BuildFlags = PLAIN, key: Key = KEY) -> list[str]:
    """What a build would be given, the first to start from."""
    with caches.lent(key, flags) as loan:
        return [loan_text(loan), *(more.read_text() for more in loan.more)]


def cache_files(caches: TimingCaches) -> list[str]:
    """The files, lists aside, that lie below the cache's folder."""
    return sorted(path.name for path in caches.root.parent.rglob("*") if path.is_file() and path.suffix == ".cache")


@pytest.mark.parametrize(
    "variant",
    [
        key_of("10.16.0.72", A100, PLAIN),
        key_of("10.16.1.11", A100.model_copy(update={"driver": "580.65.06"}), PLAIN),
        key_of("10.16.1.11", A100.model_copy(update={"name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb"}), PLAIN),
        key_of("10.16.1.11", A100.model_copy(update={"compute_capability": "8.6"}), PLAIN),
        key_of("10.16.1.11", A100, BuildFlags(tf32=False)),
        key_of("10.16.1.11", A100, BuildFlags(refit=True)),
        key_of("10.16.1.11", A100, BuildFlags(strip_weights=True)),
        key_of("10.16.1.11", A100, BuildFlags(version_compatible=True)),
        key_of("10.16.1.11", A100, BuildFlags(hardware_compatibility="ampere_plus")),
        key_of("10.16.1.11", A100, EDITABLE),
    ],
)
def test_other_kernels_have_own_cache(variant: Key, caches: TimingCaches) -> None:
    """What makes other kernels has a cache of its own."""
    measure(caches, "one")
    assert lent_texts(caches, key=variant) == [""]


@pytest.mark.parametrize(
    "same",
    [
        key_of("10.16.1.11", A100.model_copy(update={"uuid": "GPU-2", "index": 0, "driver": "570.86.15"}), PLAIN),
        key_of("10.16.1.11", A100, BuildFlags(optimization_level=5, max_aux_streams=2)),
        key_of("10.16.1.11", A100, STRICT),
    ],
)
def test_what_does_not_shares_one(same: Key, caches: TimingCaches) -> None:
    measure(caches, "one")
    assert lent_texts(caches, key=same) == ["one "]


def test_successive_builds_share_file(caches: TimingCaches) -> None:
    """One build after the other adds to one file."""
    assert measure(caches, "one") == ()
    measure(caches, "two")
    assert lent_texts(caches) == ["one two "]
    assert len(cache_files(caches)) == 1


def test_cache_copy_is_private(caches: TimingCaches) -> None:
    """A copy is private and goes with its build."""
    measure(caches, "one")
    with caches.lent(KEY, PLAIN) as loan:
        loan.file.write_text("half of a new f")
        assert lent_texts(caches) == ["one "]
        folder = loan.file.parent
    assert not folder.exists()
    assert lent_texts(caches) == ["one "]


def test_empty_measurement_changes_nothing(caches: TimingCaches) -> None:
    """A build that measured nothing new or left an empty file changes nothing."""
    measure(caches, "one")
    before = cache_files(caches)
    with caches.lent(KEY, PLAIN) as loan:
        caches.take_back(KEY, loan)
        loan.file.write_text("")
        caches.take_back(KEY, loan)
        loan.file.unlink()
        caches.take_back(KEY, loan)
    assert cache_files(caches) == before


def test_simultaneous_builds_lose_nothing(caches: TimingCaches) -> None:
    """Builds at the same time lose nothing of one another."""
    measure(caches, "one")
    with caches.lent(KEY, PLAIN) as first, caches.lent(KEY, PLAIN) as second:
        for loan, entry in ((first, "first"), (second, "second")):
            loan.file.write_text(f"{loan_text(loan)}{entry} ")
        caches.take_back(KEY, first)
        caches.take_back(KEY, second)
    assert lent_texts(caches) == ["one second ", "one first "]


def test_combined_cache_replaces_parts(caches: TimingCaches) -> None:
    """What was combined takes the place of its parts and what was not stays."""
    test_simultaneous_builds_lose_nothing(caches)
    with caches.lent(KEY, PLAIN) as by_program:  # which cannot combine
        by_program.file.write_text(f"{loan_text(by_program)}more ")
        caches.take_back(KEY, by_program)
    assert lent_texts(caches) == ["one second more ", "one first "]
    with caches.lent(KEY, PLAIN) as by_api:
        by_api.file.write_text("one second more first ")
        by_api.combined = True
        caches.take_back(KEY, by_api)
    assert lent_texts(caches) == ["one second more first "]
    assert len(cache_files(caches)) == 1


def test_largest_files_are_kept(caches: TimingCaches) -> None:
    """Only so many files of a key are kept, and those are the largest."""
    for number in range(MOST_FILES + 2):
        with caches.lent(KEY, PLAIN) as loan:
            loan.file.write_text("x" * (number + 1))
            loan._names.clear()  # as of a build that began before all others
            caches.take_back(KEY, loan)
    assert [len(text) for text in lent_texts(caches)] == list(range(MOST_FILES + 2, 2, -1))
    assert len(cache_files(caches)) == MOST_FILES


def _measure_often(root: Path, name: str, start: Barrier) -> None:
    start.wait(60)
    for number in range(10):
        with TimingCaches(root).lent(KEY, PLAIN) as loan:
            entries = {entry for file in (loan.file, *loan.more) if file.exists() for entry in file.read_text().split()}
            loan.file.write_text(" ".join(sorted({*entries, f"{name}{number}"})))
            loan.combined = True
            TimingCaches(root).take_back(KEY, loan)


@pytest.mark.slow
def test_many_processes_combine_all_measurements(caches: TimingCaches) -> None:
    """Many processes that combine end with all that each of them measured."""
    spawned = multiprocessing.get_context("spawn")  # a fork would end with 1 once Prefect has run in this process
    start = spawned.Barrier(4)
    processes = [spawned.Process(target=_measure_often, args=(caches.root, name, start)) for name in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    known_at_last = {entry for text in lent_texts(caches) for entry in text.split()}
    assert known_at_last == {f"{name}{number}" for name in "abcd" for number in range(10)}


def test_damaged_file_is_replaced(caches: TimingCaches) -> None:
    """A damaged file is ignored with a warning and replaced."""
    measure(caches, "one")
    (file,) = caches.root.glob("*.cache")
    file.write_text("onf ")
    (warning,) = measure(caches, "two")
    assert str(file) in warning
    assert "damaged, and was not used" in warning
    assert lent_texts(caches) == ["two "]
    assert measure(caches, "three") == ()
    assert len(cache_files(caches)) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"files": {}}', '{"key": {}, "files": []}'])
def test_damaged_list_is_replaced(content: str, caches: TimingCaches) -> None:
    """A damaged list is ignored with a warning and replaced."""
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    file.write_text(content)
    (warning,) = measure(caches, "two")
    assert str(file) in warning
    assert lent_texts(caches) == ["two "]
    assert len(cache_files(caches)) == 1


def test_lost_and_foreign_files_told(caches: TimingCaches) -> None:
    """A lost file and one of another machine are told of."""
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    (cache,) = caches.root.glob("*.cache")
    cache.unlink()
    assert ["was lost" in warning for warning in measure(caches, "two")] == [True]
    document = json.loads(file.read_text())
    document["key"]["gpu"] = "NVIDIA L4"
    file.write_text(json.dumps(document))
    (warning,) = measure(caches, "three")
    assert "of another machine" in warning
    assert lent_texts(caches) == ["three "]


def test_list_stays_in_its_folder(caches: TimingCaches, tmp_path: Path) -> None:
    """A list cannot name a file elsewhere."""
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    secret = tmp_path / "secret"
    secret.write_text("not a cache")
    document = json.loads(file.read_text())
    document["files"] = {f"../../{secret.name}": next(iter(document["files"].values()))}
    file.write_text(json.dumps(document))
    assert lent_texts(caches) == [""]


def test_unmeasured_build_writes_nothing(caches: TimingCaches) -> None:
    """A build that may measure nothing writes nothing."""
    measure(caches, "one")
    measure(caches, "two", flags=STRICT)
    assert lent_texts(caches) == ["one "]


def test_editable_cache_written_once(caches: TimingCaches) -> None:
    """An editable cache is written once and then only by whoever edits it."""
    key = key_of("10.16.1.11", A100, EDITABLE)
    measure(caches, "one", flags=EDITABLE, key=key)
    assert measure(caches, "two", flags=EDITABLE, key=key) == ()
    assert lent_texts(caches, flags=EDITABLE, key=key) == ["one "]
    (file,) = caches.root.glob("*.cache")
    file.write_text("another kernel ")
    (warning,) = measure(caches, "three", flags=EDITABLE, key=key)
    assert "was edited, and is used as it is now" in warning
    assert lent_texts(caches, flags=EDITABLE, key=key) == ["another kernel "]


def test_old_caches_are_collected(caches: TimingCaches, tmp_path: Path) -> None:
    """Old caches are collected and the others are no entries of the stage cache."""
    old, young = key_of("10.12.0.36", A100, PLAIN), KEY
    measure(caches, "one", key=old)
    measure(caches, "two", key=young)
    (caches.root / f"{'0' * 16}-{'0' * 16}.cache").write_text("of a build that was killed as it gave this back")
    for path in caches.root.glob("*"):
        if not path.name.startswith(young.name):
            os.utime(path, (0, 0))
    lent_texts(caches, key=young)
    limits = Limits(older_than=86400, now=time.time(), scratch=(), staging=())
    collector = Collector(tmp_path, tmp_path / "repository", limits)
    assert StageCache(tmp_path / "cache", Digester(tmp_path / "digests.sqlite")).folders() == []
    entries = collector.collect(lambda _: None)
    assert {entry.kind for entry in entries} == {"timing cache"}
    assert sum(entry.bytes for entry in entries) > len("one ")
    assert {path.name.partition("-")[0].removesuffix(".json") for path in caches.root.iterdir()} == {young.name}
    assert lent_texts(caches, key=young) == ["two "]


def test_used_cache_stays_young(caches: TimingCaches) -> None:
    """A cache that is used stays young."""
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    os.utime(file, (0, 0))
    lent_texts(caches)
    assert file.stat().st_mtime > 0
