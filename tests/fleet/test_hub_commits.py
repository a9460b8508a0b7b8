"""At which commit a hub's branches are: asked once each, through the real client, and only where that is wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plansmith.steps.provenance.fingerprint import Hub

from ..support.fleet import Place
from ..support.servers.hub_server import COMMIT, running

THEN = "f" * 40

ASK = """
import json, sys
from plansmith.errors import PlansmithError
from plansmith.steps.provenance.fingerprint import Hub
said = []
hub = Hub(ask=True, notice=said.append)
found = []
for repo, revision, known, of in json.loads(sys.argv[1]):
    try:
        found.append(hub.commit(repo, revision, known, of=of))
    except PlansmithError as error:
        found.append(error.message)
print(json.dumps({"found": found, "said": said}))
"""


def ask(url: str, home: Path, *queries: tuple[str, str | None, str, str], **variables: str) -> dict[str, Any]:
    """What a process with a hub of its own is told."""
    own = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", ASK, json.dumps(queries)]
    done = subprocess.run(command, env={**os.environ, **own, **variables}, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.slow
def test_branch_asked_for_once(files: Path, tmp_path: Path) -> None:
    """Each branch is asked for once, and a commit never."""
    with running(files) as hub:
        main = ("org/model", None, THEN, "model")
        missing = ("org/model", "gone", THEN, "model")
        unreadable = ("org/other", None, THEN, "model")
        document = ask(hub.url, tmp_path, main, main, ("org/model", THEN, "", "model"), missing, unreadable)
        assert [path for _, path, _ in hub.requests if "gone" not in path] == [
            "/api/models/org/model",
            "/api/models/org/other",
        ]
    assert document["found"][:3] == [COMMIT, COMMIT, THEN]
    assert document["found"][3] == "org/model has no revision 'gone'"
    assert document["found"][4] == "the hub has no model 'org/other' that you may read"
    assert document["said"] == []


@pytest.mark.slow
def test_silent_hub_given_up(files: Path, tmp_path: Path) -> None:
    """A Hub that does not answer leaves what is known and is given up in the end."""
    with running(files) as hub:
        hub.unavailable = 1
        queries = [(f"org/{name}", None, f"{number}" * 40, "model") for number, name in enumerate(("a", "b"))]
        document = ask(hub.url, tmp_path, queries[0], ("org/model", None, THEN, "model"))
    assert document["found"] == ["0" * 40, COMMIT]
    assert len(document["said"]) == 1
    assert document["said"][0].endswith(": the commit that is known stands")
    many = [(f"org/{number}", None, f"{number}" * 40, "model") for number in range(6)]
    down = ask("http://127.0.0.1:9", tmp_path, *many)
    assert down["found"] == [f"{number}" * 40 for number in range(6)]
    assert len(down["said"]) == 3
    assert down["said"][-1].endswith("; it is not asked again")


def test_local_cache_replaces_hub(tmp_path: Path) -> None:
    """Where the Hub must not be asked, the local cache says what a compile would take."""
    refs = tmp_path / "hub" / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    queries = (("org/model", None, THEN, "model"), ("org/other", None, THEN, "model"))
    document = ask("http://127.0.0.1:9", tmp_path, *queries, HF_HUB_OFFLINE="1")
    assert document["found"] == [COMMIT, THEN]
    (message,) = document["said"]
    assert message.startswith("the hub was not asked for org/model: HF_HUB_OFFLINE is set: what the local cache has")


def test_hub_not_asked_by_default() -> None:
    """Without being told to, nobody is asked."""
    assert Hub(ask=False).commit("org/model", None, THEN) == THEN
    assert Hub(ask=False).commit("org/model", "main", "") == ""


def test_moved_branch_names_both_commits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that moved is named with both commits."""
    moved: dict[tuple[str, str | None, str], str] = {}

    def newest(repo: str, revision: str | None, *, of: str) -> str:
        return moved[repo, revision, of]

    monkeypatch.setattr("plansmith.sources.hub.newest_commit", newest)
    data = {"dataset": "org/rows@v1"}
    place.publish(place.spec(source="hf:org/model", data=data), revision=THEN, data=THEN)
    moved |= {("org/model", None, "model"): COMMIT, ("org/rows", "v1", "dataset"): THEN}
    assert place.why() == ""
    assert place.why(resolve=True) == "source: org/model is now at 0123456 instead of fffffff"
    moved |= {("org/model", None, "model"): THEN, ("org/rows", "v1", "dataset"): COMMIT}
    assert place.why(resolve=True) == "data: the data set org/rows@v1 is now at 0123456 instead of fffffff"
    moved |= {("org/rows", "v1", "dataset"): THEN}
    assert place.why(resolve=True) == ""


def test_timm_model_asked_by_found_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timm model is asked for by the name that its compile found."""
    monkeypatch.setattr("plansmith.sources.hub.newest_commit", lambda repo, *_, of: f"{repo} {of}".ljust(40, "."))
    place.publish(place.spec(source="timm:resnet18"), revision=THEN, hub_id="timm/resnet18.a1_in1k")
    assert place.why() == ""
    assert place.why(resolve=True).startswith("source: timm/resnet18.a1_in1k is now at timm/re instead of fffffff")
    place.publish(place.spec(source="timm:resnet18", random_weights=True), content="drawn")
    assert place.why(resolve=True) == "", "weights that are drawn come from no hub"


def test_hub_copy_looked_for_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that was read from the Hub's own copy is looked for there."""
    calls: list[Any] = []

    def newest(repo: str, revision: str | None, *, of: str) -> str:
        calls.append((repo, revision, of))
        return COMMIT

    monkeypatch.setattr("plansmith.sources.hub.newest_commit", newest)
    branch = "refs/convert/parquet"
    place.publish(place.spec(data={"dataset": "org/rows"}), data=f"{branch}@{THEN}")
    assert place.why() == ""
    assert place.why(resolve=True) == "data: the data set org/rows is now at 0123456 instead of fffffff"
    assert calls == [("org/rows", branch, "dataset")]
