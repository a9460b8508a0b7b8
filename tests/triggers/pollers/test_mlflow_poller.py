"""What an MLflow server holds is told as its webhooks would have told it, so that a delivery and a look build once."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from plansmith.config.service.triggers import Change, MlflowRegistry, Rule
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
        self.said: list[str] = []
        config = MlflowRegistry(type="mlflow", tracking_uri=f"{mlflow.url}/")
        self.poller = MlflowPoller("ours", config, rules, environment=environment, tell=self.said.append)

    def deliveries(self) -> list[Delivery]:
        return self.poller.poll(NOW)

    def __call__(self) -> list[tuple[str, str, str, str]]:
        """Model, version, change and value of all that is there."""
        events = [event for delivery in self.deliveries() for event in delivery.events]
        assert all(event.source == f"mlflow:models:/{event.model}/{event.version}" for event in events)
        return [(event.model, event.version, event.change, event.value) for event in events]


def test_aliases_of_all_models_that_a_pattern_takes_are_told(mlflow: Mlflow) -> None:
    for model in ("ranker", "tagger", "third"):
        mlflow.add(model, 1)
    mlflow.aliases["ranker"] = {"champion": "12", "challenger": "13"}
    mlflow.aliases["third"] = {"champion": "2"}
    look = Looks(mlflow, CHAMPION)
    assert look() == [("ranker", "12", "alias", "champion"), ("third", "2", "alias", "champion")]
    mlflow.aliases["ranker"]["champion"] = "13"
    assert ("ranker", "13", "alias", "champion") in look()
    assert look.said == []


def test_the_newest_version_of_each_stage_is_told(mlflow: Mlflow) -> None:
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


def test_tags_and_versions_of_late_are_told_oldest_first_over_pages(mlflow: Mlflow) -> None:
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


def test_versions_that_are_not_ready_are_not_told_as_made(mlflow: Mlflow) -> None:
    mlflow.add("ranker", 1, status="PENDING_REGISTRATION")
    mlflow.add("ranker", 2, status="FAILED_REGISTRATION")
    mlflow.add("ranker", 3)
    assert Looks(mlflow, CREATED)() == [("ranker", "3", "created", "")]


def test_our_own_tags_are_never_told(mlflow: Mlflow) -> None:
    mlflow.add("ranker", 1, {"plansmith.verdict": "passed"})
    assert Looks(mlflow, REQUESTED.model_copy(update={"value": "*"}))() == []


@pytest.mark.parametrize("sent", [VERSION_CREATED, TAG_SET, ALIAS_SET])
def test_a_look_tells_the_same_event_as_the_webhook(mlflow: Mlflow, sent: Sent) -> None:
    config = MlflowRegistry(type="mlflow", tracking_uri=mlflow.url)
    told = read_delivery(config, sent.headers, sent.body, registry="ours", secrets=[SECRET], now=sent.timestamp)
    assert isinstance(told, Delivery)
    (event,) = told.events
    key, _, value = event.value.partition("=")
    mlflow.add(event.model, int(event.version), {key: value} if event.change == "tag" else {})
    if event.change == "alias":
        mlflow.aliases[event.model][event.value] = event.version
    rule = Rule(registry="ours", model=event.model, when=event.change, spec="ranker.yaml")
    (looked,) = Looks(mlflow, rule).deliveries()
    assert looked.events == told.events
    assert looked.id != told.id


def test_the_same_state_has_the_same_id_and_another_state_another(mlflow: Mlflow) -> None:
    mlflow.add("ranker", 1)
    mlflow.aliases["ranker"] = {"champion": "1"}
    look = Looks(mlflow, CHAMPION)
    (first,) = look.deliveries()
    assert look.deliveries() == [first]
    mlflow.aliases["ranker"] = {"champion": "2"}
    assert first.id not in {delivery.id for delivery in look.deliveries()}


def test_a_model_that_is_not_there_is_said_once_and_again_when_it_went_again(mlflow: Mlflow) -> None:
    rule = CHAMPION.model_copy(update={"model": "ranker"})
    look = Looks(mlflow, rule, CHAMPION.model_copy(update={"model": "other"}))
    mlflow.aliases["other"] = {"champion": "1"}
    assert look() == look() == [("other", "1", "alias", "champion")]
    assert look.said == [f"there is no model 'ranker' at {mlflow.url}"]
    mlflow.aliases["ranker"] = {"champion": "1"}
    assert len(look()) == 2
    del mlflow.aliases["ranker"]
    look()
    assert len(look.said) == 2


@pytest.mark.parametrize("when", ["tag", "created", "stage"])
def test_a_model_that_a_rule_about_something_else_than_aliases_names_is_missed_too(
    when: Change, mlflow: Mlflow
) -> None:
    look = Looks(mlflow, REQUESTED.model_copy(update={"when": when, "value": "*"}))
    assert look() == look() == []
    assert look.said == [f"there is no model 'ranker' at {mlflow.url}"]
    mlflow.aliases["ranker"] = {}
    look()
    mlflow.add("ranker", 1)
    look()
    assert len(look.said) == 1, "it is there, with versions and without"


def test_a_pattern_that_no_model_is_called_like_is_said_once(mlflow: Mlflow) -> None:
    mlflow.add("ranker", 1)
    patterns = [CHAMPION.model_copy(update={"model": one}) for one in ("rank*", "tag*")]
    look = Looks(mlflow, *patterns, CREATED.model_copy(update={"model": "tag*"}))
    look()
    look()
    assert look.said == [f"no model at {mlflow.url} is called like 'tag*'"]


def test_names_that_would_lead_elsewhere_are_left_out(mlflow: Mlflow) -> None:
    mlflow.aliases = {"a/b": {"champion": "1"}, "o'ne": {"champion": "1"}, "\"o'": {"champion": "1"}, "x\n": {}}
    mlflow.aliases["last"] = {"champion": "1'"}
    mlflow.add("o'ne", 1)
    look = Looks(mlflow, CHAMPION, CREATED.model_copy(update={"model": "*"}))
    assert look() == [("o'ne", "1", "created", ""), ("o'ne", "1", "alias", "champion")]
    assert len(look.said) == 4


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
def test_credentials_are_those_of_mlflows_own_clients(mlflow: Mlflow, environment: dict[str, str], header: str) -> None:
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
def test_a_server_that_refuses_or_is_none_is_one_clear_error(
    mlflow: Mlflow, answer: tuple[int, bytes], words: str, transient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plansmith.triggers.registries.mlflow_api._MOST_PAGES", 3)
    named = b'"registered_model"' in answer[1]
    rule = CHAMPION.model_copy(update={"model": "ranker"}) if named else CHAMPION
    look = Looks(mlflow, rule, MLFLOW_TRACKING_TOKEN="secret")
    mlflow.answer = answer
    with pytest.raises(EnvironmentFault, match=words) as caught:
        look()
    assert caught.value.remedy
    assert caught.value.transient is transient
    assert "secret" not in str(caught.value)
    assert not any("elsewhere" in path for path in mlflow.asked)


def test_a_server_that_is_away_is_a_fault_that_may_pass() -> None:
    with serving(Mlflow()) as mlflow:
        look = Looks(mlflow, CHAMPION)
        mlflow.aliases["ranker"] = {"champion": "1"}
        assert len(look()) == 1
    with pytest.raises(EnvironmentFault, match=r"cannot be reached at 127\.0\.0\.1") as caught:
        look()
    assert caught.value.transient


def test_an_answer_without_end_is_given_up(mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plansmith.triggers.registries.mlflow_api._LARGEST_BYTES", 100)
    mlflow.answer = (200, b" " * 1000)
    with pytest.raises(EnvironmentFault, match="is no MLflow"):
        Looks(mlflow, CHAMPION)()
    monkeypatch.undo()
    monkeypatch.setattr("plansmith.triggers.registries.mlflow_api._SECONDS_TO_END", -1)
    with pytest.raises(EnvironmentFault, match="takes too long to answer"):
        Looks(mlflow, CHAMPION)()
