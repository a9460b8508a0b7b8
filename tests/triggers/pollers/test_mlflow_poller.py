"""What an MLflow server holds is told as its webhooks would have told it, so that a delivery and a look build once."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from plansmith.config.service_triggers import Change, MlflowRegistry, Rule
from plansmith.errors import EnvironmentFault
from plansmith.triggers.pollers.mlflow import MlflowPoller
from plansmith.triggers.registries.delivery import Delivery
from plansmith.triggers.registries.mlflow import read_delivery

from ...support.deliveries.recorded import ALIAS_SET, SECRET, TAG_SET, VERSION_CREATED, Sent
from ...support.triggers.mlflow_server import NOW, Mlflow, serving

CHAMPION = Rule(registry="ours", model="*", when="alias", value="champion", spec="ranker.yaml")
REQUESTED = Rule(registry="ours", model="ranker", when="tag", value="compile=requested", spec="ranker.yaml")
CREATED = Rule(registry="ours", model="ranker", when="created", spec="ranker.yaml")


@pytest.fixture
def mlflow() -> Iterator[Mlflow]:
    with serving(Mlflow()) as server:
        yield server


class Looks:
    """Looks at a server by some rules."""

    def __init__(self, mlflow: Mlflow, *rules: Rule, **environment: str) -> None:
        self.messages: list[str] = []
        config = MlflowRegistry(type="mlflow", tracking_uri=f"{mlflow.url}/")
        self.poller = MlflowPoller("ours", config, rules, environment=environment, tell=self.messages.append)

    def deliveries(self) -> list[Delivery]:
        return self.poller.poll(NOW)

    def __call__(self) -> list[tuple[str, str, str, str]]:
        """Model, version, change and value of all that is there."""
        events = [event for delivery in self.deliveries() for event in delivery.events]
        assert all(event.source == f"mlflow:models:/{event.model}/{event.version}" for event in events)
        return [(event.model, event.version, event.change, event.value) for event in events]


def test_aliases_of_matching_models_told(mlflow: Mlflow) -> None:
    """Aliases of all models that a pattern takes are told."""
    for model in ("ranker", "tagger", "third"):
        mlflow.add(model, 1)
    mlflow.aliases["ranker"] = {"champion": "12", "challenger": "13"}
    mlflow.aliases["third"] = {"champion": "2"}
    look = Looks(mlflow, CHAMPION)
    assert look() == [("ranker", "12", "alias", "champion"), ("third", "2", "alias", "champion")]
    mlflow.aliases["ranker"]["champion"] = "13"
    assert ("ranker", "13", "alias", "champion") in look()
    assert look.messages == []


def test_newest_stage_version_told(mlflow: Mlflow) -> None:
    """The newest version of each stage is told."""
    for version, stage in enumerate(("Archived", "Production", "Staging", "Production", "None"), start=8):
        mlflow.add("ranker", version, stage=stage, days=100)
    in_stages = Rule(registry="ours", model="*", when="stage", value="*", spec="ranker.yaml")
    production = in_stages.model_copy(update={"value": "Production"})
    assert Looks(mlflow, in_stages)() == [
        ("ranker", "8", "stage", "Archived"),
        ("ranker", "10", "stage", "Staging"),
        ("ranker", "11", "stage", "Production"),
    ]
    assert Looks(mlflow, production, REQUESTED)() == [("ranker", "11", "stage", "Production")]


def test_recent_tags_and_versions_in_order(mlflow: Mlflow) -> None:
    """Tags and versions of late are told, oldest first, over pages."""
    for version in (9, 10, 11):
        mlflow.add("ranker", version, days=version)
    mlflow.add("ranker", 12, {"compile": "requested", "note": "two\nlines", "plansmith.state": "done"}, days=15)
    mlflow.add("ranker", 13, {"compile": "requested", "other": "x"})
    mlflow.add("other", 1, {"compile": "requested"})
    look = Looks(mlflow, REQUESTED, CREATED)
    assert look() == [
        ("ranker", "9", "created", ""),
        ("ranker", "10", "created", ""),
        ("ranker", "11", "created", ""),
        ("ranker", "12", "tag", "compile=requested"),
        ("ranker", "13", "created", ""),
        ("ranker", "13", "tag", "compile=requested"),
    ]
    assert look.poller.cautions == ("versions that were made more than 14 days ago are not looked at",)


def test_unready_versions_not_told(mlflow: Mlflow) -> None:
    """Versions that are not ready are not told as made."""
    mlflow.add("ranker", 1, status="PENDING_REGISTRATION")
    mlflow.add("ranker", 2, status="FAILED_REGISTRATION")
    mlflow.add("ranker", 3)
    assert Looks(mlflow, CREATED)() == [("ranker", "3", "created", "")]


def test_own_tags_never_told(mlflow: Mlflow) -> None:
    """Our own tags are never told."""
    mlflow.add("ranker", 1, {"plansmith.verdict": "passed"})
    assert Looks(mlflow, REQUESTED.model_copy(update={"value": "*"}))() == []


@pytest.mark.parametrize("sent", [VERSION_CREATED, TAG_SET, ALIAS_SET])
def test_look_matches_webhook(mlflow: Mlflow, sent: Sent) -> None:
    """A look tells the same event as the webhook."""
    config = MlflowRegistry(type="mlflow", tracking_uri=mlflow.url)
    delivery = read_delivery(config, sent.headers, sent.body, registry="ours", secrets=[SECRET], now=sent.timestamp)
    assert isinstance(delivery, Delivery)
    (event,) = delivery.events
    key, _, value = event.value.partition("=")
    mlflow.add(event.model, int(event.version), {key: value} if event.change == "tag" else {})
    if event.change == "alias":
        mlflow.aliases[event.model][event.value] = event.version
    rule = Rule(registry="ours", model=event.model, when=event.change, spec="ranker.yaml")
    (looked,) = Looks(mlflow, rule).deliveries()
    assert looked.events == delivery.events
    assert looked.id != delivery.id


def test_state_decides_id(mlflow: Mlflow) -> None:
    """The same state has the same ID, and another state another."""
    mlflow.add("ranker", 1)
    mlflow.aliases["ranker"] = {"champion": "1"}
    look = Looks(mlflow, CHAMPION)
    (first,) = look.deliveries()
    assert look.deliveries() == [first]
    mlflow.aliases["ranker"] = {"champion": "2"}
    assert first.id not in {delivery.id for delivery in look.deliveries()}


def test_missing_model_told_once(mlflow: Mlflow) -> None:
    """A model that is not there is said once, and again when it went again."""
    rule = CHAMPION.model_copy(update={"model": "ranker"})
    look = Looks(mlflow, rule, CHAMPION.model_copy(update={"model": "other"}))
    mlflow.aliases["other"] = {"champion": "1"}
    assert look() == look() == [("other", "1", "alias", "champion")]
    assert look.messages == [f"there is no model 'ranker' at {mlflow.url}"]
    mlflow.aliases["ranker"] = {"champion": "1"}
    assert len(look()) == 2
    del mlflow.aliases["ranker"]
    look()
    assert len(look.messages) == 2


@pytest.mark.parametrize("when", ["tag", "created", "stage"])
def test_other_rules_miss_model_too(when: Change, mlflow: Mlflow) -> None:
    """A model that a rule about something other than aliases names is missed too."""
    look = Looks(mlflow, REQUESTED.model_copy(update={"when": when, "value": "*"}))
    assert look() == look() == []
    assert look.messages == [f"there is no model 'ranker' at {mlflow.url}"]
    mlflow.aliases["ranker"] = {}
    look()
    mlflow.add("ranker", 1)
    look()
    assert len(look.messages) == 1, "it is there, with versions and without"


def test_unmatched_pattern_told_once(mlflow: Mlflow) -> None:
    """A pattern that matches no model's name is told once."""
    mlflow.add("ranker", 1)
    patterns = [CHAMPION.model_copy(update={"model": pattern}) for pattern in ("rank*", "tag*")]
    look = Looks(mlflow, *patterns, CREATED.model_copy(update={"model": "tag*"}))
    look()
    look()
    assert look.messages == [f"no model at {mlflow.url} is called like 'tag*'"]


def test_escaping_names_left_out(mlflow: Mlflow) -> None:
    """Names that would lead elsewhere are left out."""
    mlflow.aliases = {"a/b": {"champion": "1"}, "o'ne": {"champion": "1"}, "\"o'": {"champion": "1"}, "x\n": {}}
    mlflow.aliases["last"] = {"champion": "1'"}
    mlflow.add("o'ne", 1)
    look = Looks(mlflow, CHAMPION, CREATED.model_copy(update={"model": "*"}))
    assert look() == [("o'ne", "1", "created", ""), ("o'ne", "1", "alias", "champion")]
    assert len(look.messages) == 4


@pytest.mark.parametrize(
    ("environment", "header"),
    [
        ({"USERNAME": "ann", "PASSWORD": "p:w"}, "Basic " + base64.b64encode(b"ann:p:w").decode()),
        ({"TOKEN": "t0k"}, "Bearer t0k"),
        ({"USERNAME": "ann", "PASSWORD": "pw", "TOKEN": "t"}, "Basic " + base64.b64encode(b"ann:pw").decode()),
        ({"USERNAME": "ann", "TOKEN": "t"}, "Bearer t"),
        ({}, ""),
    ],
)
def test_credentials_match_mlflow_clients(mlflow: Mlflow, environment: dict[str, str], header: str) -> None:
    """Credentials are those of MLflow's own clients."""
    mlflow.add("ranker", 1)
    Looks(mlflow, CREATED, **{f"MLFLOW_TRACKING_{name}": value for name, value in environment.items()})()
    assert mlflow.credentials == {header}


@pytest.mark.parametrize(
    ("answer", "words", "transient"),
    [
        ((401, b"who?"), "lets nobody in with these credentials", False),
        ((403, b"{}"), "lets nobody in with these credentials", False),
        ((302, b""), "sends requests elsewhere", False),
        ((404, b"<html>"), r"does not answer as MLflow does \(HTTP 404\)", False),
        ((500, b""), r"does not answer as MLflow does \(HTTP 500\)", True),
        ((429, b""), "does not answer as MLflow does", True),
        ((200, b"<html>"), "is no MLflow", False),
        ((200, b'{"registered_model": 1}'), "is no MLflow", False),
        ((200, b'{"registered_models": [1]}'), "is no MLflow", False),
        ((200, b'{"registered_models": [{"name": 1.5}]}'), "is no MLflow", False),
        ((200, b'{"next_page_token": "for ever"}'), "is no MLflow", False),
    ],
)
def test_refusing_server_is_clear_error(
    mlflow: Mlflow, answer: tuple[int, bytes], words: str, transient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that refuses, or is none, is one clear error."""
    monkeypatch.setattr("plansmith.triggers.registries.mlflow._MOST_PAGES", 3)
    named = b'"registered_model"' in answer[1]
    rule = CHAMPION.model_copy(update={"model": "ranker"}) if named else CHAMPION
    look = Looks(mlflow, rule, MLFLOW_TRACKING_TOKEN="secret")
    mlflow.answer = answer
    with pytest.raises(EnvironmentFault, match=words) as caught:
        look()
    assert caught.value.remedy
    assert caught.value.transient is transient
    assert "secret" not in str(caught.value)
    assert not any("elsewhere" in path for path in mlflow.requests)


def test_absent_server_is_passing_fault() -> None:
    """A server that is away is a fault that may pass."""
    with serving(Mlflow()) as mlflow:
        look = Looks(mlflow, CHAMPION)
        mlflow.aliases["ranker"] = {"champion": "1"}
        assert len(look()) == 1
    with pytest.raises(EnvironmentFault, match=r"cannot be reached at 127\.0\.0\.1") as caught:
        look()
    assert caught.value.transient


def test_endless_answer_given_up(mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without end is given up."""
    monkeypatch.setattr("plansmith.triggers.registries.mlflow._LARGEST_BYTES", 100)
    mlflow.answer = (200, b" " * 1000)
    with pytest.raises(EnvironmentFault, match="is no MLflow"):
        Looks(mlflow, CHAMPION)()
    monkeypatch.undo()
    monkeypatch.setattr("plansmith.triggers.registries.mlflow._SECONDS_TO_END", -1)
    with pytest.raises(EnvironmentFault, match="takes too long to answer"):
        Looks(mlflow, CHAMPION)()
