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


def known(loan: Loan) -> str:
    return loan.file.read_text() if loan.file.exists() else ""


def measure(caches: TimingCaches, entry: str, *, flags: BuildFlags = PLAIN, key: Key = KEY) -> tuple[str, ...]:
    """A build that adds an entry to what it finds; the warnings that it got."""
    with caches.lent(key, flags) as loan:
        loan.file.write_text(f"{known(loan)}{entry} ")
        caches.take_back(key, loan)
    return loan.warnings


def found(caches: TimingCaches, *, flags: BuildFlags = PLAIN, key: Key = KEY) -> list[str]:
    """What a build would be given, the first to start from."""
    with caches.lent(key, flags) as loan:
        return [known(loan), *(more.read_text() for more in loan.more)]


def left(caches: TimingCaches) -> list[str]:
    """The files, lists aside, that lie below the cache's folder."""
    return sorted(path.name for path in caches.root.parent.rglob("*") if path.is_file() and path.suffix == ".cache")


@pytest.mark.parametrize(
    "other",
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
def test_what_makes_other_kernels_has_a_cache_of_its_own(other: Key, caches: TimingCaches) -> None:
    measure(caches, "one")
    assert found(caches, key=other) == [""]


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
    assert found(caches, key=same) == ["one "]


def test_one_build_after_the_other_adds_to_one_file(caches: TimingCaches) -> None:
    assert measure(caches, "one") == ()
    measure(caches, "two")
    assert found(caches) == ["one two "]
    assert len(left(caches)) == 1


def test_a_copy_is_private_and_goes_with_its_build(caches: TimingCaches) -> None:
    measure(caches, "one")
    with caches.lent(KEY, PLAIN) as loan:
        loan.file.write_text("half of a new f")
        assert found(caches) == ["one "]
        folder = loan.file.parent
    assert not folder.exists()
    assert found(caches) == ["one "]


def test_a_build_that_measured_nothing_new_or_left_an_empty_file_changes_nothing(caches: TimingCaches) -> None:
    measure(caches, "one")
    before = left(caches)
    with caches.lent(KEY, PLAIN) as loan:
        caches.take_back(KEY, loan)
        loan.file.write_text("")
        caches.take_back(KEY, loan)
        loan.file.unlink()
        caches.take_back(KEY, loan)
    assert left(caches) == before


def test_builds_at_the_same_time_lose_nothing_of_one_another(caches: TimingCaches) -> None:
    measure(caches, "one")
    with caches.lent(KEY, PLAIN) as first, caches.lent(KEY, PLAIN) as second:
        for loan, entry in ((first, "first"), (second, "second")):
            loan.file.write_text(f"{known(loan)}{entry} ")
        caches.take_back(KEY, first)
        caches.take_back(KEY, second)
    assert found(caches) == ["one second ", "one first "]


def test_what_was_combined_takes_the_place_of_its_parts_and_what_was_not_stays(caches: TimingCaches) -> None:
    test_builds_at_the_same_time_lose_nothing_of_one_another(caches)
    with caches.lent(KEY, PLAIN) as by_program:  # which cannot combine
        by_program.file.write_text(f"{known(by_program)}more ")
        caches.take_back(KEY, by_program)
    assert found(caches) == ["one second more ", "one first "]
    with caches.lent(KEY, PLAIN) as by_api:
        by_api.file.write_text("one second more first ")
        by_api.combined = True
        caches.take_back(KEY, by_api)
    assert found(caches) == ["one second more first "]
    assert len(left(caches)) == 1


def test_only_so_many_files_of_a_key_are_kept_the_largest(caches: TimingCaches) -> None:
    for number in range(MOST_FILES + 2):
        with caches.lent(KEY, PLAIN) as loan:
            loan.file.write_text("x" * (number + 1))
            loan._names.clear()  # as of a build that began before all others
            caches.take_back(KEY, loan)
    assert [len(text) for text in found(caches)] == list(range(MOST_FILES + 2, 2, -1))
    assert len(left(caches)) == MOST_FILES


def _measure_often(root: Path, name: str, start: Barrier) -> None:
    start.wait(60)
    for number in range(10):
        with TimingCaches(root).lent(KEY, PLAIN) as loan:
            entries = {entry for file in (loan.file, *loan.more) if file.exists() for entry in file.read_text().split()}
            loan.file.write_text(" ".join(sorted({*entries, f"{name}{number}"})))
            loan.combined = True
            TimingCaches(root).take_back(KEY, loan)


@pytest.mark.slow
def test_many_processes_that_combine_end_with_all_that_each_of_them_measured(caches: TimingCaches) -> None:
    spawned = multiprocessing.get_context("spawn")  # a fork would end with 1 once Prefect has run in this process
    start = spawned.Barrier(4)
    processes = [spawned.Process(target=_measure_often, args=(caches.root, name, start)) for name in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    known_at_last = {entry for text in found(caches) for entry in text.split()}
    assert known_at_last == {f"{name}{number}" for name in "abcd" for number in range(10)}


def test_a_damaged_file_is_ignored_with_a_warning_and_replaced(caches: TimingCaches) -> None:
    measure(caches, "one")
    (file,) = caches.root.glob("*.cache")
    file.write_text("onf ")
    (warning,) = measure(caches, "two")
    assert str(file) in warning
    assert "damaged, and was not used" in warning
    assert found(caches) == ["two "]
    assert measure(caches, "three") == ()
    assert len(left(caches)) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"files": {}}', '{"key": {}, "files": []}'])
def test_a_damaged_list_is_ignored_with_a_warning_and_replaced(content: str, caches: TimingCaches) -> None:
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    file.write_text(content)
    (warning,) = measure(caches, "two")
    assert str(file) in warning
    assert found(caches) == ["two "]
    assert len(left(caches)) == 1


def test_a_lost_file_and_one_of_another_machine_are_told_of(caches: TimingCaches) -> None:
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    (cache,) = caches.root.glob("*.cache")
    cache.unlink()
    assert ["was lost" in warning for warning in measure(caches, "two")] == [True]
    told = json.loads(file.read_text())
    told["key"]["gpu"] = "NVIDIA L4"
    file.write_text(json.dumps(told))
    (warning,) = measure(caches, "three")
    assert "of another machine" in warning
    assert found(caches) == ["three "]


def test_a_list_cannot_name_a_file_elsewhere(caches: TimingCaches, tmp_path: Path) -> None:
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    secret = tmp_path / "secret"
    secret.write_text("not a cache")
    told = json.loads(file.read_text())
    told["files"] = {f"../../{secret.name}": next(iter(told["files"].values()))}
    file.write_text(json.dumps(told))
    assert found(caches) == [""]


def test_a_build_that_may_measure_nothing_writes_nothing(caches: TimingCaches) -> None:
    measure(caches, "one")
    measure(caches, "two", flags=STRICT)
    assert found(caches) == ["one "]


def test_an_editable_cache_is_written_once_and_then_only_by_whoever_edits_it(caches: TimingCaches) -> None:
    key = key_of("10.16.1.11", A100, EDITABLE)
    measure(caches, "one", flags=EDITABLE, key=key)
    assert measure(caches, "two", flags=EDITABLE, key=key) == ()
    assert found(caches, flags=EDITABLE, key=key) == ["one "]
    (file,) = caches.root.glob("*.cache")
    file.write_text("another kernel ")
    (warning,) = measure(caches, "three", flags=EDITABLE, key=key)
    assert "was edited, and is used as it is now" in warning
    assert found(caches, flags=EDITABLE, key=key) == ["another kernel "]


def test_old_caches_are_collected_and_the_others_are_no_entries_of_the_stage_cache(
    caches: TimingCaches, tmp_path: Path
) -> None:
    old, young = key_of("10.12.0.36", A100, PLAIN), KEY
    measure(caches, "one", key=old)
    measure(caches, "two", key=young)
    (caches.root / f"{'0' * 16}-{'0' * 16}.cache").write_text("of a build that was killed as it gave this back")
    for path in caches.root.glob("*"):
        if not path.name.startswith(young.name):
            os.utime(path, (0, 0))
    found(caches, key=young)
    limits = Limits(older_than=86400, now=time.time(), scratch=(), staging=())
    collector = Collector(tmp_path, tmp_path / "repository", limits)
    assert StageCache(tmp_path / "cache", Digester(tmp_path / "digests.sqlite")).folders() == []
    gone = collector.collect(lambda _: None)
    assert {one.kind for one in gone} == {"timing cache"}
    assert sum(one.bytes for one in gone) > len("one ")
    assert {path.name.partition("-")[0].removesuffix(".json") for path in caches.root.iterdir()} == {young.name}
    assert found(caches, key=young) == ["two "]


def test_a_cache_that_is_used_stays_young(caches: TimingCaches) -> None:
    measure(caches, "one")
    (file,) = caches.root.glob("*.json")
    os.utime(file, (0, 0))
    found(caches)
    assert file.stat().st_mtime > 0
