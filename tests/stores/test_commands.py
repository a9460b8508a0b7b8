"""The commands that work on a store, and on a repository in its place: what they print and what they refuse."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.store import Store
from plansmith.triton.repository.repository import ModelRepository

from ..support.cli.command import Refused, check_refusal
from ..support.cli.in_process import InProcess
from ..support.cli.read_only import read_only
from ..support.stores.filled import fill, let_pass, publish, report_live
from ..support.stores.releases import MODEL, make_release
from ..support.stores.s3 import S3
from ..support.triton.versions import INTERFACE

STORE = ("--store", "store")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository of three versions of one model and one of another, and a store that has them, too."""
    folder = tmp_path_factory.mktemp("filled")
    store = Store(FolderObjects(folder / "store"))
    fill(store, folder / "artifacts", 3)
    publish(store, make_release(folder / "artifacts" / "repository", 1, model="other"))
    return folder


@pytest.fixture
def run(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """`plansmith` in a copy of that folder."""
    monkeypatch.delenv("PLANSMITH_STORE", raising=False)
    shutil.copytree(filled, tmp_path, symlinks=True, dirs_exist_ok=True)
    return InProcess(tmp_path, monkeypatch, capfd)


@pytest.fixture
def folder_store(run: InProcess) -> Store:
    """The store in that folder."""
    return Store(FolderObjects(run.folder / "store"))


def lines(run: InProcess, *arguments: str) -> list[str]:
    """What a command prints that goes well."""
    answer = run(*arguments)
    assert (answer.status, answer.stderr) == (0, ""), answer
    return answer.stdout.splitlines()


def test_versions_omits_empty_and_pruned(run: InProcess, folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions command leaves empty columns and pruned versions out."""
    prune(run, folder_store, monkeypatch)
    head, titles, *rows = lines(run, "versions", MODEL, *STORE)
    assert head.endswith("2 versions, 1 pruned")
    assert "LIVE" not in titles
    assert "PINNED" not in titles
    assert len(rows) == 2
    every = lines(run, "versions", MODEL, *STORE, "--all")
    assert "pruned 20" in every[2]
    assert len(every) == 5


def prune(run: InProcess, folder_store: Store, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """Prune as if all were forty days older."""
    with monkeypatch.context() as patched:
        let_pass(patched, folder_store, 40)
        now = folder_store.objects.now
        patched.setattr(FolderObjects, "now", lambda _: now())
        patched.setattr("time.sleep", lambda _: None)
        return lines(run, "prune", "--keep", "1", *STORE, *arguments)


def test_all_models_take_line_each(run: InProcess) -> None:
    """Versions of all models are a line each."""
    assert [line.split()[:2] for line in lines(run, "versions", *STORE)[2:]] == [[MODEL, "3"], ["other", "1"]]
    models = run("versions", *STORE, "--json").document["models"]
    assert [(model["model"], len(model["versions"])) for model in models] == [(MODEL, 3), ("other", 1)]


def test_repository_versions_listed_without_store(run: InProcess) -> None:
    """Without a store it is the repository whose versions are listed."""
    head, titles, *rows = lines(run, "versions", MODEL)
    assert head == f"{MODEL} in {run.folder / 'artifacts' / 'repository'}: 3 versions"
    assert "TRITON" in titles
    assert [row.split()[-1] for row in rows] == ["shown", "shown", "serves"]
    assert [line.split()[0] for line in lines(run, "versions")[2:]] == [MODEL, "other"]
    assert len(run("versions", MODEL, "--json").document["versions"]) == 3


def test_environment_store_used_by_default(
    run: InProcess, folder_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of the environment is taken unless a repository is typed."""
    monkeypatch.setenv("PLANSMITH_STORE", "store")
    assert lines(run, "versions", MODEL)[0] == f"{MODEL} in {folder_store.place}: 3 versions"
    assert "artifacts" in lines(run, "versions", MODEL, "--repository", "artifacts/repository")[0]
    assert lines(run, "promote", f"{MODEL}@1", "champion")


def test_alias_moved_rolled_back_removed(run: InProcess, folder_store: Store) -> None:
    """An alias is moved, rolled back and taken away."""
    assert lines(run, "promote", f"{MODEL}@1", "champion", *STORE) == [f"champion of {MODEL} is version 1"]
    moved = lines(run, "promote", f"{MODEL}@current", "champion", "--share", "25%", *STORE)
    assert moved == [f"champion of {MODEL} is version 3, no longer 1, for 25% of the requests"]
    assert folder_store.catalogue(MODEL).aliases["champion"].share == 0.25
    again = lines(run, "promote", f"{MODEL}@3", "champion", "--share", "0.25", *STORE)
    assert again == [f"champion of {MODEL} is version 3, as before, for 25% of the requests"]
    back = run("rollback", MODEL, "--alias", "champion", *STORE, "--json").document
    assert (back["version"], back["was"]) == (1, 3)
    output = lines(run, "promote", MODEL, "champion", "--off", *STORE)
    assert output == [f"{MODEL} has no alias champion any more; it stood for version 1"]
    assert folder_store.catalogue(MODEL).aliases.keys() == {"current"}
    assert lines(run, "rollback", MODEL, *STORE) == [f"current of {MODEL} is version 2 again, no longer 3"]


@pytest.mark.parametrize(
    ("words", "version"), [(("rollback", MODEL), 2), (("promote", f"{MODEL}@1", "current", "--share", "10%"), 1)]
)
def test_unrenewed_repository_shows_alias_move(
    run: InProcess, folder_store: Store, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], version: int
) -> None:
    """A repository that is not renewed does not hide that the alias was moved."""

    def fails(*_: object) -> None:
        raise EnvironmentFault("the server is gone", remedy="start it", transient=True)

    monkeypatch.setattr("plansmith.stores.repository_view.refresh_view", fails)
    share = " --share 0.1" if version == 1 else ""
    again = f"plansmith promote {MODEL}@{version} current{share} --store {folder_store.place}"
    check_refusal(run(*words, *STORE, "--json"), 9, (f"is version {version} now", "the server is gone", again))
    assert folder_store.catalogue(MODEL).aliases["current"].version == version
    monkeypatch.undo()
    monkeypatch.chdir(run.folder)
    run(*again.split()[1:])
    assert folder_store.catalogue(MODEL).aliases["current"].version == version


def test_alias_keeps_interface_unless_meant(run: InProcess, folder_store: Store) -> None:
    """An alias is not moved to another interface unless that is meant."""
    other_interface = INTERFACE.model_copy(update={"outputs": INTERFACE.outputs[:1]})
    release = make_release(run.folder / "artifacts" / "repository", 4, interface=other_interface)
    publish(folder_store, release, "canary")
    refused = run("promote", f"{MODEL}@canary", "current", *STORE, "--json")
    check_refusal(refused, 7, ("differ from those of answers@3: three is gone", "--allow-interface-change"))
    assert folder_store.catalogue(MODEL).aliases["current"].version == 3
    moved = lines(run, "promote", f"{MODEL}@canary", "current", "--allow-interface-change", *STORE)
    assert moved == [f"current of {MODEL} is version 4, no longer 3"]


def test_rollback_withdraws_newest_without_store(run: InProcess) -> None:
    """Without a store a rollback withdraws the newest version of the repository."""
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    output = lines(run, "rollback", MODEL)
    assert output == [
        f"version 3 of {MODEL} is withdrawn, and Triton is shown version 2 again",
        "Next: to have it back, compile it again with --force, as a new version",
    ]
    assert repository.views(MODEL).shown() == [1, 2]
    assert repository.withdrawals(MODEL).reason(3) == "rolled back"
    assert run("rollback", MODEL, "--json").document["withdrawn"] == 2
    check_refusal(run("rollback", MODEL, "--json"), 7, ("has no version to go back to", "plansmith versions"))
    assert repository.views(MODEL).shown() == [1]


def test_pin_has_reason_and_goes(run: InProcess, folder_store: Store) -> None:
    """A pin has a reason, and can be taken away again."""
    assert lines(run, "pin", f"{MODEL}@1", "--reason", "audit", *STORE) == [f"version 1 of {MODEL} is pinned: audit"]
    assert [(pin.version, pin.reason) for pin in folder_store.catalogue(MODEL).pins] == [(1, "audit")]
    assert run("pin", f"{MODEL}@1", "--off", *STORE, "--json").document["pins"] == []


def test_prune_explains_itself(run: InProcess, folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prune command says what goes and why the rest stays."""
    planned = prune(run, folder_store, monkeypatch, "--dry-run")
    assert len(folder_store.catalogue(MODEL).standing()) == 3
    done = prune(run, folder_store, monkeypatch)
    assert [line.replace("would be ", "") for line in planned if "can go" not in line] == [*done[:2], *done[3:]]
    assert done[0].startswith(f"  {MODEL}@1  published 20")
    assert done[1] == "1 version and 0 contents removed, 0 B freed"
    day_later = datetime.fromisoformat(folder_store.catalogue(MODEL).versions[0].pruned or "") + timedelta(days=1)
    assert re.fullmatch(rf"[\d.]+ [KM]?i?B more can go after {day_later:%Y-%m-%d %H:%M} UTC: until then, .*", done[2])
    assert done[3] == "3 versions stay"
    assert {line.strip() for line in done[4:]} == {
        f"a rollback of current leads to it  {MODEL}@2",
        f"current stands for it              {MODEL}@3, other@1",
    }
    assert [version.version for version in folder_store.catalogue(MODEL).standing()] == [2, 3]


def test_verify_reads_repository_without_store(run: InProcess) -> None:
    """The verify command without a store reads the repository."""
    assert lines(run, "verify")[-1] == "  all as it was published"
    graph = run.folder / "artifacts/repository.plansmith/releases" / MODEL / "2/model/model.onnx"
    content = graph.read_bytes()
    graph.unlink()
    graph.write_bytes(content[::-1])
    answer = run("verify", MODEL)
    assert answer.status == 7
    assert f"!! {MODEL}@2 model/model.onnx: its content is not what was published" in answer.stdout
    assert lines(run, "verify", MODEL, "--quick")[-1] == "  all is there; contents were not read"
    assert run("verify", "other").status == 0


def test_store_describes_and_reprobes_itself(run: InProcess) -> None:
    """The store command says what it is, and is asked again when told."""
    facts = dict(line.split(maxsplit=1) for line in lines(run, "store", *STORE)[1:])
    assert facts["target"] == "local-cpu"
    assert facts["models"] == "2 models, 4 versions"
    assert facts["writes"].startswith("conditional")
    report = run("store", *STORE, "--probe", "--json").document
    assert (report["models"], report["versions"]) == (2, 4)
    assert report["abilities"]["swap"] is True


def test_diff_compares_store_repository_folder(run: InProcess) -> None:
    """The diff command compares versions of a store, of the repository and of a folder."""
    stored = lines(run, "diff", f"{MODEL}@1", MODEL, *STORE)
    local = lines(run, "diff", f"{MODEL}@1", f"{MODEL}@3")
    folder = lines(run, "diff", f"{MODEL}@1", f"artifacts/repository.plansmith/releases/{MODEL}/3", *STORE)
    assert stored[0] == local[0] == f"{MODEL}@1 -> {MODEL}@3"
    assert stored[1:] == local[1:] == folder[1:]
    assert lines(run, "diff", MODEL, f"{MODEL}@3", *STORE)[1] == "  nothing differs"
    assert run("diff", f"{MODEL}@1", MODEL, *STORE, "--json").document["new"] == f"{MODEL}@3"


REFUSED = {
    "no store": Refused(("promote", "m@1", "a"), 2, ("not said which store", "PLANSMITH_STORE")),
    "a store that is none": Refused(("versions", "--store", "artifacts"), 7, ("is no store", "plansmith publish")),
    "a place that is none": Refused(("verify", "--store", "ftp://x/y"), 2, ("only folders and s3://",)),
    "options of S3 for a folder": Refused(("store", *STORE, "--region", "x"), 2, ("--region", "is a folder")),
    "options of S3 for no store": Refused(("versions", "--region", "x"), 2, ("--region is for a store",)),
    "credentials in an address": Refused(
        ("versions", "--store", "s3://models", "--endpoint-url", "http://me:secret@x"), 2, ("no credentials",)
    ),
    "two places": Refused(("versions", *STORE, "--repository", "x"), 2, ("two places",)),
    "an unknown model": Refused(("versions", "third", *STORE), 7, ("no model 'third'", f"{MODEL}, other")),
    "an unknown version": Refused(("promote", f"{MODEL}@9", "a", *STORE), 7, ("no version 9", "1, 2, 3")),
    "an unknown alias": Refused(("pin", f"{MODEL}@gold", "--reason", "x", *STORE), 7, ("no alias 'gold'", "current")),
    "no version": Refused(("promote", MODEL, "champion", *STORE), 2, ("names no version", "@VERSION")),
    "an alias that is none": Refused(("promote", f"{MODEL}@1", "9", *STORE), 2, ("'9' is no alias",)),
    "an alias that is not there": Refused(("promote", MODEL, "gold", "--off", *STORE), 7, ("no alias 'gold'",)),
    "too large a share": Refused(("promote", f"{MODEL}@1", "a", "--share", "101%", *STORE), 2, ("no share", "10%")),
    "no share": Refused(("promote", f"{MODEL}@1", "a", "--share", "much", *STORE), 2, ("'much' is no share",)),
    "nothing to go back to": Refused(
        ("rollback", "other", *STORE), 7, ("never stood for another", "plansmith promote")
    ),
    "an alias of a repository": Refused(("rollback", MODEL, "--alias", "a"), 2, ("has no aliases",)),
    "a pin without a reason": Refused(("pin", f"{MODEL}@1", *STORE), 2, ("--reason TEXT and --off",)),
    "a pin of no version": Refused(("pin", MODEL, "--off", *STORE), 2, ("names no version",)),
    "an age that is none": Refused(("prune", "--older-than", "soon", *STORE), 2, ("'soon' is no age",)),
    "no release to compare": Refused(("diff", f"{MODEL}@1", f"{MODEL}@9"), 7, ("no version '9'",)),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_senseless_command_refused_with_alternative(refused: Refused, run: InProcess) -> None:
    """What makes no sense is refused with what to type instead."""
    answer = run(*refused.arguments, "--json")
    check_refusal(answer, refused.status, refused.says)
    assert "secret" not in answer.stdout + answer.stderr


@pytest.mark.slow
def test_suggested_commands_name_store(run: InProcess, s3: S3) -> None:
    """What there is to type names how the store is reached."""
    place = f"s3://{s3.bucket}/team/models"
    reached = (place, "--endpoint-url", s3.endpoint)
    typed = " ".join(reached)
    empty = run("versions", "--store", *reached, "--json")
    check_refusal(empty, 7, (f"plansmith publish MODEL {typed}",))
    run("publish", MODEL, *reached)
    run("pull", MODEL, "--store", *reached, "--into", "mirror")
    check_refusal(
        run("rollback", MODEL, "--repository", "mirror", "--json"), 7, (f"plansmith rollback {MODEL} --store {typed}",)
    )
    s3.client.delete_object(Bucket=s3.bucket, Key=max(s3.keys()))
    damaged = run("verify", "--store", *reached).stderr
    assert f"plansmith publish {MODEL}@3 {typed} --resend" in damaged


def test_read_only_store_is_read(run: InProcess, folder_store: Store) -> None:
    """A store that can only be read is read."""
    report_live(folder_store, 2)
    with read_only(run.folder / "store", run.folder / "mounted") as store:
        assert "gpu-7" in run("versions", MODEL, "--store", store).stdout
        for arguments in (("diff", f"{MODEL}@1", f"{MODEL}@2"), ("verify", MODEL), ("pull", MODEL, "--into", "mirror")):
            answer = run(*arguments, "--store", store)
            assert answer.status == 0, answer
        refused = run("pin", f"{MODEL}@1", "--reason", "audit", "--store", store, "--json")
        check_refusal(refused, 7, ("cannot write to",))
