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
    record = json.loads(newest.read_text())
    assert isinstance(record, dict)
    return record


def test_release_sent_to_stores_once(finished: Compiled, run: InProcess) -> None:
    """A release that stands goes into every store and is sent once."""
    places = [str(run.folder / "first"), str(run.folder / "second")]
    arguments = (*finished.command, "--publish", "first", "--publish", places[1], "--json")
    planned = run(*arguments, "--dry-run").document
    assert planned["plan"]["publish"].endswith(f", and go to {places[0]}, {places[1]}")
    assert not (run.folder / "first").exists()
    answer = run(*arguments)
    assert (answer.status, answer.document["unchanged"]) == (0, True), answer.stderr
    publications = answer.document["publications"]
    assert publications == planned["publications"]
    assert [(entry["place"], entry["version"], entry["aliases"], entry["unchanged"]) for entry in publications] == [
        (place, 1, ["current"], False) for place in places
    ]
    assert publications == last_run(run)["publications"]
    for place in places:
        version = store_in(Path(place)).find("tiny")[1]
        assert version.digest == publications[0]["digest"]
    again = run(*arguments).document["publications"]
    assert again == [entry | {"unchanged": True, "sent_bytes": 0} for entry in publications]
    lines = run(*finished.command, "--publish", "first", "--publish", "third").stdout.splitlines()
    assert [line for line in lines if "version 1 (current): 0 B of" in line and f"already in {places[0]}" in line]
    assert [line for line in lines if f"published to {run.folder / 'third'} as version 1 (current): " in line]


def test_spec_stores_start_from_folder(finished: Compiled, run: InProcess) -> None:
    """A spec names stores from its own folder and a switch leaves them out."""
    spec = _spec(finished, "publish: {to: ../store, aliases: [champion, canary]}\n")
    assert run("compile", spec, "--no-publish", "--json").document["publications"] == []
    assert not (run.folder / "store").exists()
    (publication,) = run("compile", spec, "--json").document["publications"]
    assert (publication["place"], publication["aliases"]) == (str(run.folder / "store"), ["champion", "canary"])
    assert set(store_in(run.folder / "store").catalogue("tiny").aliases) == {"champion", "canary"}
    typed = run("compile", spec, "--publish", "other", "--json").document["publications"]
    assert [entry["place"] for entry in typed] == [str(run.folder / "other")]
    refused = run("compile", spec, "--publish", "other", "--no-publish", "--json")
    check_refusal(refused, 2, ("--publish and --no-publish are opposites",))


def test_failed_store_can_be_resumed(finished: Compiled, run: InProcess) -> None:
    """A store that fails leaves the release and the same command goes on."""
    contents = run.folder / "second" / "objects"
    assert run(*finished.command, "--publish", "second", "--quiet").status == 0
    contents.rename(run.folder / "away")
    contents.write_text("no folder, so that nothing can be written below it")
    arguments = (*finished.command, "--name", "other", "--publish", "first", "--publish", "second", "--json")
    answer = run(*arguments)
    stands = f"version 1 of other stands in {run.folder}/artifacts/repository, and was not published to"
    check_refusal(answer, 7, ("other · publish: cannot write to", stands, "run the same command again: nothing is"))
    record = last_run(run)
    assert (record["outcome"], record["version"]) == ("failed", 1)
    assert [entry["place"] for entry in record["publications"]] == [str(run.folder / "first")]
    assert store_in(run.folder / "second").models() == ["tiny"]
    contents.unlink()
    (run.folder / "away").rename(contents)
    mended = run(*arguments).document
    assert mended["unchanged"]
    assert [step["name"] for step in mended["steps"] if not step["cached"]] == ["publish"]
    assert [(entry["unchanged"], entry["version"]) for entry in mended["publications"]] == [(True, 1), (False, 1)]


def test_refusing_store_known_early(finished: Compiled, run: InProcess) -> None:
    """A store that refuses is known before anything is done."""
    (run.folder / "photos").mkdir()
    (run.folder / "photos" / "beach.jpg").write_text("")
    artifacts = run.folder / "artifacts"
    for place, says in (
        ("photos", "photos holds something that is not plansmith's: beach.jpg"),
        (artifacts / "store", f"overlaps {artifacts}"),
    ):
        answer = run(*finished.command, "--name", "other", "--publish", str(place), "--json")
        check_refusal(answer, 7, ("other · publish", says))
        assert "fetch" not in answer.stderr
        dry = run(*finished.command, "--name", "other", "--publish", str(place), "--json", "--dry-run")
        check_refusal(dry, 7, ("other · publish", says))


def test_target_has_own_store(finished: Compiled, run: InProcess) -> None:
    """Each of several targets has a store of its own."""
    arguments = ("--target", "local-cpu", "--target", "triton-26.08-cpu", "--repository", "many", "--no-check-served")
    answer = run(*finished.command, *arguments, "--publish", "stores", "--json")
    places = [model["publications"][0]["place"] for model in answer.document["models"]]
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
