"""`plansmith triggers watch`: what is there is in the inbox, once, whoever ends it and when; what is wrong is said."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from ...support.cli.command import CommandLine
from ...support.servers.hub_server import COMMIT
from ...support.servers.hub_server import running as hub_running
from ...support.triggers.watched import WatchedService

pytestmark = pytest.mark.slow

WATCH = ("triggers", "watch")
SHELF = {"type": "folder", "path": "models", "poll_seconds": 5}
READY = {"registry": "shelf", "when": "ready"}
GONE = {"type": "mlflow", "tracking_uri": "http://127.0.0.1:9"}


def put(service: WatchedService, *models: str) -> None:
    for model in models:
        folder = service.folder / "models" / model
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_text(model)
        (folder / "_READY").touch()


def service_of(folder: Path, registries: dict[str, Any] | None = None, *rules: dict[str, str]) -> WatchedService:
    service = WatchedService(folder, {"shelf": SHELF, **(registries or {})}, READY, *rules)
    put(service, "ranker")
    return service


def test_kept_models_not_repeated(tmp_path: Path) -> None:
    """What is there is kept, and not again the next time."""
    service, run = service_of(tmp_path), CommandLine(tmp_path)
    first = run(*WATCH, "--once")
    assert (first.status, first.stdout) == (0, "shelf: 1 state there, 1 new\n")
    (line,) = map(json.loads, first.stderr.splitlines())
    assert (line["event"], line["registry"]) == ("found", "shelf")
    assert line["what"].startswith("ranker, version ")
    put(service, "tagger")
    second = run(*WATCH, "--once")
    assert (second.status, second.stdout) == (0, "shelf: 2 states there, 1 new\n")
    assert service.models() == ["ranker", "tagger"]
    assert [entry.event.source for entry in service.entries()] == [
        f"onnx:{tmp_path}/models/{model}/model.onnx" for model in ("ranker", "tagger")
    ]


def test_hub_endpoint_is_followed(tmp_path: Path) -> None:
    """The Hub is looked at where its endpoint says."""
    rule = {"registry": "hub", "when": "branch", "model": "org/model", "value": "refs/heads/main"}
    service = service_of(tmp_path, {"hub": {"type": "hub"}}, rule)
    (tmp_path / "published").mkdir()
    with hub_running(tmp_path / "published") as hub:
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        answer = CommandLine(tmp_path)(*WATCH, "--once", "--registry", "hub", **own)
    assert (answer.status, answer.stdout) == (0, "hub: 1 state there, 1 new\n"), answer.stderr
    assert [entry.event.source for entry in service.entries()] == [f"hf:org/model@{COMMIT}"]


def test_absent_registry_is_final_error(tmp_path: Path) -> None:
    """A registry that is away is the error after all others were looked at."""
    service = service_of(tmp_path, {"a": GONE}, {"registry": "a", "when": "alias", "value": "champion"})
    answer = CommandLine(tmp_path)(*WATCH, "--once")
    assert (answer.status, answer.stdout) == (9, "shelf: 1 state there, 1 new\n")
    assert "MLflow cannot be reached at 127.0.0.1:9" in answer.message
    assert "\nNext: see that it runs" in answer.message
    assert service.models() == ["ranker"]


def test_unmatched_rule_is_said(tmp_path: Path) -> None:
    """A rule that never matches is said."""
    service_of(tmp_path, None, {"registry": "shelf", "when": "alias"})
    answer = CommandLine(tmp_path)(*WATCH, "--once")
    assert answer.status == 0
    assert "triggers.rules.1 never matches: shelf is of type folder" in answer.stderr


REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no file": (("--service", "absent.yaml"), ("there is no file absent.yaml", "--service")),
    "no such registry": (("--registry", "other"), ("there is no registry 'other'", "name one of these: shelf, ci")),
    "a hook": (("--registry", "ci"), ("ci cannot be looked at: hooks only tell", "plansmith triggers serve")),
}


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_unwatchable_place_refused(words: tuple[str, ...], says: tuple[str, ...], tmp_path: Path) -> None:
    """What cannot be looked at is refused."""
    service_of(tmp_path, {"ci": {"type": "hook", "secrets": ["env:SECRET"]}})
    answer = CommandLine(tmp_path)(*WATCH, *words)
    assert (answer.status, answer.stdout) == (2, "")
    assert not [fragment for fragment in (*says, "\nNext: ") if fragment not in answer.message], answer.message
    assert not (tmp_path / "plansmith-triggers.db").exists()


def test_service_without_triggers_is_said(tmp_path: Path) -> None:
    """A service without triggers is said."""
    (tmp_path / "service.yaml").write_text("specs: [specs]\npools: {local: {}}\n")
    answer = CommandLine(tmp_path)(*WATCH, "--service", "service.yaml")
    assert answer.status == 2
    assert "no section `triggers`" in answer.message


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_watch_runs_until_told(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """The watch goes on until it is told to end."""
    service = service_of(tmp_path)
    with service.watch() as watching:
        assert "watching shelf; Ctrl-C ends it" in watching.output
        watching.wait_for('"event": "found"')
        watching.send(number)
        assert watching.ended() == code
        assert watching.output.endswith("nothing is looked at any more; what was found is kept\n")
        assert "Traceback" not in watching.output
    assert service.models() == ["ranker"]


def test_second_signal_ends_look(tmp_path: Path) -> None:
    """A second signal does not wait for a look that has begun."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        stuck = {"type": "mlflow", "tracking_uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        service = service_of(tmp_path, {"stuck": stuck}, {"registry": "stuck", "when": "alias", "value": "champion"})
        with service.watch() as watching:
            connection, _ = silent.accept()
            with connection:
                watching.send(signal.SIGTERM)
                watching.wait_for("once more to end at once")
                watching.send(signal.SIGTERM)
                assert watching.ended() == -signal.SIGTERM


def test_returning_folder_said_once(tmp_path: Path) -> None:
    """A folder that goes away and comes back is told once each time."""
    service = service_of(tmp_path)
    models, away = tmp_path / "models", tmp_path / "away"
    with service.watch() as watching:
        watching.wait_for('"event": "found"')
        models.rename(away)
        watching.wait_for('"event": "away"')
        away.rename(models)
        watching.wait_for('"event": "there again"')
        assert [len(watching.lines(event)) for event in ("away", "there again", "found")] == [1, 1, 1]
        assert watching.lines("away")[0]["remedy"].startswith("put it there")
    assert service.models() == ["ranker"]


def test_unopenable_inbox_is_clear_error(tmp_path: Path) -> None:
    """An inbox that cannot be opened is one clear error."""
    service_of(tmp_path)
    (tmp_path / "plansmith-triggers.db").write_text("no database at all, but a text of some length" * 50)
    answer = CommandLine(tmp_path)(*WATCH, "--once")
    assert answer.status == 2
    assert "is no database" in answer.message


def test_unknown_registry_key_refused(tmp_path: Path) -> None:
    """A key that a registry does not have is refused at its line."""
    service_of(tmp_path, {"ours": {**GONE, "allowed": {"buckets": ["models"]}}})
    answer = CommandLine(tmp_path)(*WATCH)
    assert answer.status == 2
    assert "allowed" in answer.message
