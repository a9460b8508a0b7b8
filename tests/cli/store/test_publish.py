"""`plansmith publish`: a release of a repository goes into a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.formatting import format_bytes
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.store import Store

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.stores.releases import MODEL, make_release


@pytest.fixture
def run(run: InProcess) -> InProcess:
    """A folder with a repository of one model that has two releases."""
    make_release(run.folder / "artifacts" / "repository", 1)
    make_release(run.folder / "artifacts" / "repository", 2)
    return run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Where the tests publish to."""
    return Store(FolderObjects(tmp_path / "store"))


def test_newest_release_is_published(run: InProcess, store: Store) -> None:
    """The newest release is published and said so in one line."""
    would = run("publish", MODEL, "store", "--dry-run")
    planned = run("publish", MODEL, "store", "--dry-run", "--json").document
    assert would.stdout.startswith(f"{MODEL} would be published to {store.place} as version 2 (current): ")
    assert store.marker() is None
    done = run("publish", MODEL, "store")
    assert done.stdout == would.stdout.replace("would be ", "")
    assert done.status == 0
    assert store.find(MODEL)[1].version == 2
    again = run("publish", MODEL, "store", "--json").document
    assert again == planned | {"dry_run": False, "unchanged": True, "sent_bytes": 0}
    assert planned["dry_run"]
    assert (planned["place"], planned["unchanged"]) == (store.place, False)
    assert planned["sent_bytes"] == planned["total_bytes"] > 0


def test_aliases_are_named_or_none(run: InProcess, store: Store) -> None:
    run("publish", f"{MODEL}@1", "store", "--no-alias")
    assert store.catalogue(MODEL).aliases == {}
    run("publish", f"{MODEL}@2", "store", "--alias", "champion", "--alias", "canary")
    assert {name: alias.version for name, alias in store.catalogue(MODEL).aliases.items()} == {
        "canary": 2,
        "champion": 2,
    }
    moved = run("publish", f"{MODEL}@1", "store", "--alias", "champion", "--json")
    assert moved.document["aliases"] == ["champion"]
    assert store.catalogue(MODEL).aliases["champion"].line == (2, 1)


def test_rollback_stays_unless_typed(run: InProcess, store: Store) -> None:
    """A release that was rolled back stays so unless the version is typed."""
    run("publish", f"{MODEL}@1", "store")
    run("publish", f"{MODEL}@2", "store")
    store.roll_back(MODEL)
    output = run("publish", MODEL, "store").stdout
    assert "current stands for version 1, and is left so" in output
    assert f"plansmith promote {MODEL}@2 current --store {store.place}" in output
    assert store.find(MODEL)[1].version == 1
    run("publish", f"{MODEL}@2", "store")
    assert store.find(MODEL)[1].version == 2


def test_one_size_for_one_release(run: InProcess) -> None:
    """A release has the same size when it is published and where the versions of a store or repository are listed."""
    total = format_bytes(run("publish", MODEL, "store", "--json").document["total_bytes"])
    for place in (("--store", "store"), ()):
        assert f"  {total}  " in run("versions", MODEL, *place).stdout.splitlines()[-1]


@pytest.mark.slow
def test_view_kept_for_store_reader(run: InProcess) -> None:
    """A view is kept for a Triton that reads the store."""
    would = run("publish", f"{MODEL}@1", "store", "--view", "--dry-run")
    done = run("publish", f"{MODEL}@1", "store", "--view")
    assert done.stdout == would.stdout.replace("would be ", "")
    assert done.stdout.endswith(", and shown in its repository\n")
    assert (run.folder / "store" / "repository" / MODEL / "1" / "model.onnx").is_file()
    run("publish", f"{MODEL}@2", "store")
    assert (run.folder / "store" / "repository" / MODEL / "2" / "model.onnx").is_file()


def test_withdrawn_release_not_published(run: InProcess, store: Store) -> None:
    """A release that was withdrawn is not published."""
    make_release(run.folder / "artifacts" / "repository", 3).repository.withdraw(MODEL, 3, "it answers nonsense")
    check_refusal(
        run("publish", f"{MODEL}@3", "store", "--json"), 7, ("version 3 of answers was withdrawn: it answers nonsense",)
    )
    assert run("publish", MODEL, "store", "--json").document["version"] == 2
    assert store.models() == [MODEL]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((MODEL, "store", "--alias", "a", "--no-alias"), 2, "--alias and --no-alias are opposites"),
        ((MODEL, "store", "--view", "--no-alias"), 2, "--view shows what an alias stands for"),
        ((MODEL, "store", "--alias", "7up"), 2, "'7up' is no alias"),
        ((MODEL, "ftp://models"), 2, "only folders and s3://bucket/prefix are known"),
        ((MODEL, "s3:/models"), 2, "s3: is no folder; an S3 prefix is s3://bucket/prefix"),
        ((MODEL, "S3:models"), 2, "Next: write a folder, or s3://BUCKET/PREFIX"),
        ((MODEL, ""), 2, "it is empty"),
        ((MODEL, "s3://models/../x"), 2, "a prefix has no empty parts, no . or .."),
        ((MODEL, "store", "--region", "eu-1"), 2, "--region is for s3:// only"),
        (("unknown", "store"), 7, "has no model 'unknown'"),
        ((f"{MODEL}@7", "store"), 7, "answers has no version '7'"),
        ((MODEL, "artifacts/repository"), 7, "cannot take releases: it overlaps"),
        ((MODEL, "artifacts/repository/answers"), 7, "cannot take releases: it overlaps"),
        ((MODEL, "artifacts/repository.plansmith/store"), 7, "cannot take releases: it overlaps"),
        ((MODEL, "artifacts"), 7, "cannot take releases: it overlaps"),
        ((MODEL, "other/repository"), 7, "cannot take releases: it overlaps"),
        ((MODEL, "file"), 7, "cannot write to"),
    ],
)
def test_what_cannot_be_is_refused(run: InProcess, words: tuple[str, ...], status: int, says: str) -> None:
    make_release(run.folder / "other" / "repository", 1)
    (run.folder / "file").write_text("")
    check_refusal(run("publish", *words, "--json"), status, (says,))
    assert not (run.folder / "store").exists()
