"""What is whole by its digests and does not do what it should is found, too; and what cannot be looked at is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, RepositoryError, ServedCheckError
from plansmith.fleet.maintenance import verify as verifying
from plansmith.fleet.maintenance.garbage import Collector, Limits
from plansmith.fleet.maintenance.locations import Places
from plansmith.fleet.maintenance.verify import Verified, VerifyOptions, VersionAnswer, verify
from plansmith.records.destination import Location
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.store import Store
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import find_installation

from ...support.faults.packages import MODEL as BARE
from ...support.faults.packages import draft_of, publish, write_package
from ...support.stores.answering import publish_answering, swap_consistently
from ...support.stores.filled import fill
from ...support.stores.releases import MODEL as STORED
from ...support.triton.versions import graph

BY_DIGEST = VerifyOptions(on_server=False)


@pytest.fixture
def triton() -> None:
    """There is a Triton here."""
    try:
        find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))


def outcomes(verified: Verified) -> dict[str, str]:
    return {f"{answer.model}@{answer.version}": answer.outcome for answer in verified.answers}


@pytest.mark.slow
@pytest.mark.usefixtures("triton")
def test_wrong_answers_found_on_server(tmp_path: Path) -> None:
    """A whole version that answers wrongly or does not load is found on a server."""
    root = tmp_path / "repository"
    publish_answering(root, "right")
    publish_answering(root, "misremembered", reference=2)
    swapped = publish_answering(root, "swapped")
    swap_consistently(root, swapped, "model/model.onnx", graph(3))
    publish_answering(root, "garbage", content=b"this is no graph")
    messages: list[str] = []
    report = verify(Places(repositories=[root]), VerifyOptions(), tell=messages.append)
    assert [place.damages for place in report.places] == [()], "by its digests, all of it is whole"
    assert outcomes(report) == {
        "garbage@1": "wrong",
        "misremembered@1": "wrong",
        "right@1": "right",
        "swapped@1": "wrong",
    }
    by_model = {answer.model: answer for answer in report.answers}
    assert by_model["right"].requests == 6
    assert not by_model["right"].log
    assert "to opt is wrong: output 'whole'" in by_model["swapped"].problem
    assert by_model["garbage"].problem.startswith("Triton does not load it: UNAVAILABLE: ")
    assert "InvalidProtobuf" in by_model["garbage"].problem
    assert Path(by_model["garbage"].log).is_file()
    error = report.error()
    assert isinstance(error, ServedCheckError)
    assert "garbage@1, misremembered@1, swapped@1" in error.message
    assert "plansmith rollback garbage" in error.remedy
    assert "asking Triton about misremembered@1 (2 of 4)" in messages
    staging = ModelRepository(root).staging
    assert [path.name for path in staging.iterdir()] == [".lock"]
    for answer in report.answers:
        if answer.log:
            Path(answer.log).unlink()


def test_damaged_version_not_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged version is told and no server is asked about it."""
    root = tmp_path / "repository"
    manifest = publish_answering(root, "tiny")
    graph_file = ModelRepository(root).release("tiny", manifest.version) / "model" / "model.onnx"
    graph_file.chmod(0o644)
    graph_file.write_bytes(graph_file.read_bytes()[::-1])
    monkeypatch.setattr(
        "plansmith.fleet.maintenance.verify.check_published_release", lambda *_, **__: pytest.fail("it was asked")
    )
    report = verify(Places(repositories=[root]), VerifyOptions())
    assert [(damage.version, damage.path) for damage in report.places[0].damages] == [(1, "model/model.onnx")]
    assert report.answers == ()
    error = report.error()
    assert isinstance(error, RepositoryError)
    assert error.message == "not as it was published: tiny@1"
    assert verify(Places(repositories=[root]), VerifyOptions(quick=True, on_server=False)).error() is None


def test_changed_view_is_found(tmp_path: Path) -> None:
    """A view that is not what was published is found."""
    root = tmp_path / "repository"
    publish_answering(root, "tiny")
    shown = root / "tiny" / "1" / "model.onnx"
    content = shown.read_bytes()
    shown.unlink()  # it was a link to the release's
    shown.write_bytes(content)
    assert verify(Places(repositories=[root]), BY_DIGEST).error() is None, "a copy does as well"
    shown.write_bytes(content[::-1])
    (damage,) = verify(Places(repositories=[root]), BY_DIGEST).places[0].damages
    assert (damage.model, damage.version, damage.path, damage.key) == ("tiny", 1, "1/model.onnx", str(shown))
    shown.write_bytes(content[:-1])
    assert verify(Places(repositories=[root]), VerifyOptions(quick=True, on_server=False)).places[0].damages


def test_unaskable_version_is_no_success(tmp_path: Path) -> None:
    """A version that no server here can be asked about is no success."""
    root = tmp_path / "repository"
    publish_answering(root, "tiny")
    report = verify(Places(repositories=[root]), VerifyOptions(tritonserver=str(tmp_path / "none")))
    assert outcomes(report) == {"tiny@1": "unasked"}
    error = report.error()
    assert isinstance(error, EnvironmentFault)
    assert "no Triton here could be asked about tiny@1: " in error.message
    assert error.remedy
    assert verify(Places(repositories=[root]), BY_DIGEST).error() is None


@pytest.mark.parametrize("kept", ["there", "gone", "relative", "nothing"])
def test_checking_server_is_asked(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that a release was checked by is asked where it is there."""
    root = tmp_path / "repository"
    manifest = publish_answering(root, "tiny")
    (tmp_path / "triton").mkdir()
    monkeypatch.chdir(tmp_path)
    server = {"there": str(tmp_path / "triton"), "gone": str(tmp_path / "old"), "relative": "triton"}.get(kept, "")
    checked = manifest.model_copy(update={"spec": {**manifest.spec, "tritonserver": server}})
    monkeypatch.setattr(ModelRepository, "readable", lambda *_: checked)
    servers: list[str] = []

    def find(named: str, *_: object, **__: object) -> None:
        servers.append(named)
        raise EnvironmentFault("none here", remedy="install one")

    monkeypatch.setattr(verifying, "find_serving_runtime", find)
    assert outcomes(verify(Places(repositories=[root]), VerifyOptions())) == {"tiny@1": "unasked"}
    assert servers == [str(tmp_path / "triton") if kept == "there" else ""]


def test_incomparable_answers_are_no_failure(tmp_path: Path) -> None:
    """A release whose answers cannot be compared is told and is no failure."""
    root = tmp_path / "repository"
    package = write_package(tmp_path / "package", "1")
    publish(root, package, draft_of(package))
    report = verify(Places(repositories=[root]), VerifyOptions())
    assert report.answers == (
        VersionAnswer(
            repository=str(root),
            model=BARE,
            version=1,
            outcome="incomparable",
            problem="it holds no case of a reference that it takes",
        ),
    )
    assert report.error() is None


def test_unreadable_place_stops_no_other(tmp_path: Path) -> None:
    """All places are looked at though one cannot be."""
    store = Store(FolderObjects(tmp_path / "store"))
    fill(store, tmp_path, 1)
    for target in ("local-cpu", "triton-26.03"):
        publish_answering(tmp_path / "several" / target, "tiny", target=target)
    places = Places(
        repositories=[Path("none"), Path("several"), Path("repository")],
        stores=[Location(to="nowhere"), Location(to="store")],
        relative_to=tmp_path,
    )
    report = verify(places, BY_DIGEST)
    expected = ["several/local-cpu", "several/triton-26.03", "repository", "store"]
    assert [place.place for place in report.places] == [str(tmp_path / name) for name in expected]
    assert [fault.place for fault in report.faults] == ["none", "nowhere"]
    error = report.error()
    assert isinstance(error, RepositoryError)
    assert error.message == "there is no repository none"
    only = verify(places, BY_DIGEST, model=STORED)
    assert [(place.place, place.models) for place in only.places] == [
        (str(tmp_path / "repository"), 1),
        (str(tmp_path / "store"), 1),
    ]
    with pytest.raises(RepositoryError, match="no model 'other'"):
        verify(Places(repositories=[tmp_path / "repository"]), BY_DIGEST, model="other")


def test_unreadable_release_stops_no_other(tmp_path: Path) -> None:
    """One repository or release that cannot be read leaves the others to be looked at."""
    odd, good = tmp_path / "odd", tmp_path / "good"
    publish_answering(odd, "tiny")
    (ModelRepository(odd).store / "releases" / "tiny" / "7").write_text("no folder")
    unread = publish_answering(good, "forgetful")
    (case, *_) = (file.path for file in unread.files if file.path.startswith("reference/"))
    swap_consistently(good, unread, case, b"no arrays")
    publish_answering(good, "tiny")
    report = verify(Places([odd, good]), VerifyOptions(tritonserver=str(tmp_path / "none")))
    assert [place.place for place in report.places] == [str(good)]
    release = ModelRepository(good).release("forgetful", 1)
    assert [fault.place for fault in report.faults] == [str(odd), str(release)]
    assert all("cannot be read: " in fault.message and fault.remedy for fault in report.faults)
    assert outcomes(report) == {"tiny@1": "unasked"}
    assert isinstance(report.error(), RepositoryError)


def test_damaged_version_has_its_remedy(
    tmp_path: Path,
) -> None:
    """A damaged hidden version is left to a collection, and a damaged shown one to a compile."""
    repository = ModelRepository(tmp_path / "repository")
    for answers in (1, 2, 3):
        publish_answering(repository.root, "tiny", answers=answers)
    repository.withdraw("tiny", 1, "not good")

    def damage(version: int) -> None:
        graph_file = repository.release("tiny", version) / "model" / "model.onnx"
        content = graph_file.read_bytes()
        graph_file.unlink()
        graph_file.write_bytes(content[::-1])

    def remedy() -> str:
        error = verify(Places([repository.root]), BY_DIGEST).error()
        return error.remedy if error is not None else ""

    damage(1)
    assert remedy().startswith(f"plansmith gc --repository {repository.root}")
    limits = Limits(older_than=1e9, now=time.time(), scratch=(), staging=())
    Collector(tmp_path, repository.root, limits).collect(lambda _: None)
    assert (remedy(), repository.versions("tiny")) == ("", [2, 3])
    damage(3)
    assert remedy() == "compile the model again: a damaged release is replaced by a new version"


@pytest.mark.parametrize("kept", ["server", "gone", "relative"])
def test_server_of_spec_comes_first(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the spec is asked where it is there, and otherwise this machine's."""
    root, server = tmp_path / "repository", tmp_path / "server"
    server.mkdir()
    monkeypatch.chdir(tmp_path)
    first_manifest = publish_answering(root, "tiny")
    named = {"server": str(server), "gone": str(tmp_path / "gone"), "relative": "server"}[kept]
    again = first_manifest.model_copy(update={"spec": {**first_manifest.spec, "tritonserver": named}})
    manifest = ModelRepository(root).release("tiny", 1) / "manifest.json"
    manifest.unlink()
    manifest.write_text(again.model_dump_json())
    monkeypatch.setenv("PLANSMITH_TRITONSERVER", "/nowhere")
    (answer,) = verify(Places([root]), VerifyOptions()).answers
    explanation = "/nowhere is what PLANSMITH_TRITONSERVER says"
    assert answer.problem.startswith(f"{server} was given" if kept == "server" else explanation)
    (answer,) = verify(Places([Path("repository")], relative_to=tmp_path), VerifyOptions(tritonserver="mine")).answers
    assert answer.problem.startswith(f"{tmp_path / 'mine'} was given")
