"""A version of an MLflow server is told what came of its builds, once, and by nothing that starts another."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from plansmith.config.service.triggers import MlflowRegistry, Rule
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.pollers.mlflow import MlflowPoller
from plansmith.triggers.registries.delivery import Ignored
from plansmith.triggers.registries.mlflow import HEADERS, read_delivery
from plansmith.triggers.write_back.mlflow import MlflowWriter

from ...support.deliveries.recorded import SECRET, signed
from ...support.triggers.builds import build, telling, version
from ...support.triggers.mlflow_server import NOW, Mlflow, serving

ALIAS = "plansmith-ready"
TOLD = {
    f"plansmith.ranker.local-cpu.{name}" for name in ("verdict", "reason", "published", "manifest", "figures", "run")
}


@pytest.fixture
def mlflow() -> Iterator[Mlflow]:
    """A server with three versions of one model, of which the last is the champion."""
    with serving(Mlflow()) as server:
        for number in (1, 2, 3):
            server.add("ranker", number, {"compile": "requested"})
        server.aliases["ranker"]["champion"] = "3"
        yield server


def config(mlflow: Mlflow, alias: str = "") -> MlflowRegistry:
    return MlflowRegistry(type="mlflow", tracking_uri=mlflow.url, write_back=True, write_back_alias=alias)


def write(mlflow: Mlflow, *builds: Any, alias: str = "", **how: Any) -> bool:
    given = {"event": version()} | how
    still_ours: Callable[[], bool] = given.pop("still_ours", lambda: True)
    return MlflowWriter(config(mlflow, alias), {}).write(telling(*builds, **given), still_ours)


def test_a_version_has_the_tags_of_its_build_beside_its_own(mlflow: Mlflow) -> None:
    assert write(mlflow, build())
    tags = mlflow.tags("ranker", 3)
    assert tags.keys() == {"compile", "plansmith.verdict", *TOLD}
    assert tags["plansmith.ranker.local-cpu.published"].startswith("/srv/repository version 4")
    assert json.loads(tags["plansmith.ranker.local-cpu.figures"])["precision"] == "fp16"
    assert mlflow.changes[-1][1]["key"] == "plansmith.verdict", "who sees it finds the rest"
    assert mlflow.tags("ranker", 2) == {"compile": "requested"}
    assert mlflow.aliases["ranker"] == {"champion": "3"}


def test_the_same_told_again_changes_nothing_and_something_else_only_what_differs(mlflow: Mlflow) -> None:
    assert write(mlflow, build(), alias=ALIAS)
    before = len(mlflow.changes)
    assert write(mlflow, build(), alias=ALIAS)
    assert len(mlflow.changes) == before
    assert write(mlflow, build(manifest_digest="cd" * 32), alias=ALIAS)
    assert [said["key"] for _, said in mlflow.changes[before:]] == ["plansmith.ranker.local-cpu.manifest"]


def test_an_alias_says_that_all_is_published_of_the_newest_version_and_is_set_last(mlflow: Mlflow) -> None:
    assert write(mlflow, build(), build("refused", target="triton-26.03"), alias=ALIAS)
    assert write(mlflow, build(), alias=ALIAS, is_last=False)
    assert write(mlflow, build(), alias=ALIAS, is_whole=False)
    assert write(mlflow, build())
    assert mlflow.aliases["ranker"] == {"champion": "3"}
    assert write(mlflow, build(), build(target="triton-26.03"), alias=ALIAS)
    assert mlflow.aliases["ranker"] == {"champion": "3", ALIAS: "3"}
    assert mlflow.changes[-1][0] == "registered-models/alias"


def test_what_was_written_starts_nothing_whether_it_is_delivered_or_looked_at(mlflow: Mlflow) -> None:
    assert write(mlflow, build(), alias=ALIAS)
    for path, said in mlflow.changes:
        entity, action = ("alias", "created") if path.endswith("alias") else ("tag", "set")
        value = {"entity": f"model_version_{entity}", "action": action, "timestamp": "", "data": said}
        sent = signed(HEADERS, value, delivery="d-1", timestamp=str(int(time.time())))
        found = read_delivery(
            config(mlflow, ALIAS), sent.headers, sent.body, registry="mlflow", secrets=[SECRET], now=time.time()
        )
        assert isinstance(found, Ignored), said
    rules = [Rule(registry="mlflow", model="*", when=when, spec="a.yaml") for when in ("alias", "tag")]
    poller = MlflowPoller("mlflow", config(mlflow, ALIAS), rules, environment={}, tell=print)
    values = {event.value for delivery in poller.poll(NOW) for event in delivery.events}
    assert values == {"champion", "compile=requested"}


def test_a_version_that_is_gone_and_what_mlflow_does_not_take_is_refused(mlflow: Mlflow) -> None:
    with pytest.raises(UsageError, match="there is no version 9 of ranker"):
        write(mlflow, build(), event=version(number=9))
    mlflow.answer = 400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid\\n tag"}'
    with pytest.raises(UsageError, match="refuses model-versions/get: Invalid tag"):
        write(mlflow, build())


@pytest.mark.parametrize(
    ("status", "says", "passes"),
    [(503, "does not answer as MLflow does", True), (403, "lets nobody in", False), (404, "HTTP 404", False)],
)
def test_a_server_that_does_not_answer_as_it_should_is_a_fault(
    mlflow: Mlflow, status: int, says: str, passes: bool
) -> None:
    mlflow.answer = status, b"<html>"
    with pytest.raises(EnvironmentFault, match=says) as caught:
        write(mlflow, build())
    assert caught.value.transient is passes


def test_a_server_that_goes_away_in_between_is_told_the_rest_later(mlflow: Mlflow) -> None:
    mlflow.away_after = 2
    with pytest.raises(EnvironmentFault, match="HTTP 503"):
        write(mlflow, build())
    mlflow.away_after = None
    assert write(mlflow, build())
    keys = [said["key"] for _, said in mlflow.changes]
    assert len(keys) == len(set(keys)) == len(TOLD) + 1


def test_whoever_lost_it_writes_nothing_more(mlflow: Mlflow) -> None:
    left = iter([True, True, False])
    assert not write(mlflow, build(), still_ours=lambda: next(left))
    assert len(mlflow.changes) == 2


def test_it_is_written_with_the_credentials_of_mlflows_own_clients(mlflow: Mlflow) -> None:
    login = {"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}
    assert MlflowWriter(config(mlflow), login).write(telling(build(), event=version()), lambda: True)
    assert mlflow.credentials == {f"Basic {base64.b64encode(b'u:p').decode()}"}


@pytest.mark.parametrize("alias", ["latest", "v12", "V2", "a b", "ä", "x" * 256])
def test_an_alias_that_mlflow_would_not_take_is_refused_in_the_file(alias: str) -> None:
    words = {"type": "mlflow", "tracking_uri": "http://mlflow", "write_back": True, "write_back_alias": alias}
    with pytest.raises(ValueError, match="write_back_alias: MLflow takes"):
        MlflowRegistry.model_validate(words)


def test_an_alias_without_writing_back_is_refused_in_the_file() -> None:
    words = {"type": "mlflow", "tracking_uri": "http://mlflow", "write_back_alias": ALIAS}
    with pytest.raises(ValueError, match="only with write_back: true"):
        MlflowRegistry.model_validate(words)
