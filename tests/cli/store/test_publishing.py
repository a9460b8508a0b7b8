"""`plansmith compile --publish` and `publish:` of a spec: a release also goes into stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.store import Store

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ..conftest import Compiled

pytestmark = pytest.mark.slow


@pytest.fixture
def run(finished: Compiled, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """A folder in which `tiny` was compiled."""
    return InProcess(finished.folder, monkeypatch, capfd)


def store_in(folder: Path) -> Store:
    return Store(FolderObjects(folder))


def last_run(run: InProcess) -> dict[str, Any]:
    """What the history says of the last compile."""
    newest = max((run.folder / "artifacts" / "history").glob("*.json"))
    found = json.loads(newest.read_text())
    assert isinstance(found, dict)
    return found


def test_a_release_that_stands_goes_into_every_store_and_is_sent_once(finished: Compiled, run: InProcess) -> None:
    places = [str(run.folder / "first"), str(run.folder / "second")]
    words = (*finished.command, "--publish", "first", "--publish", places[1], "--json")
    planned = run(*words, "--dry-run").document
    assert planned["plan"]["publish"].endswith(f", and go to {places[0]}, {places[1]}")
    assert not (run.folder / "first").exists()
    answer = run(*words)
    assert (answer.status, answer.document["unchanged"]) == (0, True), answer.stderr
    told = answer.document["publications"]
    assert told == planned["publications"]
    assert [(one["place"], one["version"], one["aliases"], one["unchanged"]) for one in told] == [
        (place, 1, ["current"], False) for place in places
    ]
    assert told == last_run(run)["publications"]
    for place in places:
        version = store_in(Path(place)).find("tiny")[1]
        assert version.digest == told[0]["digest"]
    again = run(*words).document["publications"]
    assert again == [one | {"unchanged": True, "sent_bytes": 0} for one in told]
    said = run(*finished.command, "--publish", "first", "--publish", "third").stdout.splitlines()
    assert [line for line in said if "version 1 (current): 0 B of" in line and f"already in {places[0]}" in line]
    assert [line for line in said if f"published to {run.folder / 'third'} as version 1 (current): " in line]


def test_a_spec_names_stores_from_its_own_folder_and_a_switch_leaves_them_out(
    finished: Compiled, run: InProcess
) -> None:
    spec = _spec(finished, "publish: {to: ../store, aliases: [champion, canary]}\n")
    assert run("compile", spec, "--no-publish", "--json").document["publications"] == []
    assert not (run.folder / "store").exists()
    (told,) = run("compile", spec, "--json").document["publications"]
    assert (told["place"], told["aliases"]) == (str(run.folder / "store"), ["champion", "canary"])
    assert set(store_in(run.folder / "store").catalogue("tiny").aliases) == {"champion", "canary"}
    typed = run("compile", spec, "--publish", "other", "--json").document["publications"]
    assert [one["place"] for one in typed] == [str(run.folder / "other")]
    refused = run("compile", spec, "--publish", "other", "--no-publish", "--json")
    check_refusal(refused, 2, ("--publish and --no-publish are opposites",))


def test_a_store_that_fails_leaves_the_release_and_the_same_command_goes_on(finished: Compiled, run: InProcess) -> None:
    contents = run.folder / "second" / "objects"
    assert run(*finished.command, "--publish", "second", "--quiet").status == 0
    contents.rename(run.folder / "away")
    contents.write_text("no folder, so that nothing can be written below it")
    words = (*finished.command, "--name", "other", "--publish", "first", "--publish", "second", "--json")
    answer = run(*words)
    stands = f"version 1 of other stands in {run.folder}/artifacts/repository, and was not published to"
    check_refusal(answer, 7, ("other · publish: cannot write to", stands, "run the same command again: nothing is"))
    kept = last_run(run)
    assert (kept["outcome"], kept["version"]) == ("failed", 1)
    assert [one["place"] for one in kept["publications"]] == [str(run.folder / "first")]
    assert store_in(run.folder / "second").models() == ["tiny"]
    contents.unlink()
    (run.folder / "away").rename(contents)
    mended = run(*words).document
    assert mended["unchanged"]
    assert [step["name"] for step in mended["steps"] if not step["cached"]] == ["publish"]
    assert [(one["unchanged"], one["version"]) for one in mended["publications"]] == [(True, 1), (False, 1)]


def test_a_store_that_refuses_is_known_before_anything_is_done(finished: Compiled, run: InProcess) -> None:
    (run.folder / "photos").mkdir()
    (run.folder / "photos" / "beach.jpg").write_text("")
    artifacts = run.folder / "artifacts"
    for place, says in (
        ("photos", "photos holds something that is not plansmith's: beach.jpg"),
        (artifacts / "store", f"overlaps {artifacts}"),
        (artifacts / "repository" / "store", "cannot take releases: it overlaps"),
        (artifacts / "repository.plansmith", "cannot take releases: it overlaps"),
        (run.folder, f"{run.folder} cannot take releases"),
    ):
        answer = run(*finished.command, "--name", "other", "--publish", str(place), "--json")
        check_refusal(answer, 7, ("other · publish", says))
        assert "fetch" not in answer.stderr
        dry = run(*finished.command, "--name", "other", "--publish", str(place), "--json", "--dry-run")
        check_refusal(dry, 7, ("other · publish", says))


def test_each_of_several_targets_has_a_store_of_its_own(finished: Compiled, run: InProcess) -> None:
    words = ("--target", "local-cpu", "--target", "triton-26.08-cpu", "--repository", "many", "--no-check-served")
    answer = run(*finished.command, *words, "--publish", "stores", "--json")
    places = [one["publications"][0]["place"] for one in answer.document["models"]]
    assert places == [str(run.folder / "stores" / target) for target in ("local-cpu", "triton-26.08-cpu")]
    markers = [store_in(Path(place)).marker() for place in places]
    assert [marker and marker.target for marker in markers] == ["local-cpu", "triton-26.08-cpu"]


def _spec(finished: Compiled, more: str) -> Path:
    """A spec of what was compiled, in a folder of its own."""
    folder = finished.folder / "specs"
    folder.mkdir()
    source = finished.command[1]
    (folder / "tiny.yaml").write_text(
        f"source: {source}\nname: tiny\nartifacts: ../artifacts\ncheck_served: false\n{more}"
    )
    return folder / "tiny.yaml"
