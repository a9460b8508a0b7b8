"""A repository and a store that an earlier plansmith wrote are read, validated, served and rolled back.

`earlier_release.tar.xz` was written by plansmith 0.1.0, before its modules had packages of their own: two versions of a
tiny BERT with random weights in `artifacts/repository`, both published to `store`. It is never written anew: a change
that cannot read it breaks what users have.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from ..support.cli.command import CommandLine

pytestmark = pytest.mark.slow


@pytest.fixture
def earlier(tmp_path: Path) -> CommandLine:
    """`plansmith` in a folder with what the earlier one left."""
    with tarfile.open(Path(__file__).parent / "earlier_release.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return CommandLine(tmp_path)


def served_version(run: CommandLine, repository: str) -> int:
    """The version of `tiny` that a Triton on a repository answers with."""
    return int(run.document("infer", "tiny", "--random", "--serve", "--repository", repository)["version"])


def test_earlier_repository_served_and_rolled_back(earlier: CommandLine) -> None:
    """Nothing is found wrong, the gate passes again, and Triton serves the newest version and then the one before."""
    assert earlier("verify").status == 0
    assert earlier("check", "artifacts/repository").status == 0
    assert earlier("validate", "tiny@2").status == 0
    assert served_version(earlier, "artifacts/repository") == 2
    earlier.text("rollback", "tiny")
    assert served_version(earlier, "artifacts/repository") == 1


def test_earlier_store_rolled_back_and_pulled(earlier: CommandLine) -> None:
    """The alias goes back by one version, and another machine pulls that and serves it."""
    assert earlier("verify", "--store", "store").status == 0
    listed = earlier.document("versions", "tiny", "--store", "store")["versions"]
    assert [version["version"] for version in listed] == [1, 2]
    earlier.text("rollback", "tiny", "--store", "store")
    earlier.text("pull", "tiny", "--store", "store", "--into", "pulled")
    assert served_version(earlier, "pulled") == 1
