"""A version of an MLflow server is told what came of its builds, once, and by nothing that starts another."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from plansmith.config.service_triggers import MlflowRegistry, Rule
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.pollers.mlflow import MlflowPoller
from plansmith.triggers.registries.delivery import Ignored
from plansmith.triggers.registries.mlflow import HEADERS, read_delivery
from plansmith.triggers.write_back import MlflowWriter

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
    options = {"event": version()} | how
    still_ours: Callable[[], bool] = options.pop("still_ours", lambda: True)
    return MlflowWriter(config(mlflow, alias), {}).write(telling(*builds, **options), still_ours)


def test_version_has_build_tags(mlflow: Mlflow) -> None:
    """A version has the tags of its build beside its own."""
    assert write(mlflow, build())
    tags = mlflow.tags("ranker", 3)
    assert tags.keys() == {"compile", "plansmith.verdict", *TOLD}
    assert tags["plansmith.ranker.local-cpu.published"].startswith("/srv/repository version 4")
    assert json.loads(tags["plansmith.ranker.local-cpu.figures"])["precision"] == "fp16"
    assert mlflow.changes[-1][1]["key"] == "plansmith.verdict", "who sees it finds the rest"
    assert mlflow.tags("ranker", 2) == {"compile": "requested"}
    assert mlflow.aliases["ranker"] == {"champion": "3"}


def test_repetition_changes_only_differences(mlflow: Mlflow) -> None:
    """The same told again changes nothing, and something else only what differs."""
    assert write(mlflow, build(), alias=ALIAS)
    before = len(mlflow.changes)
    assert write(mlflow, build(), alias=ALIAS)
    assert len(mlflow.changes) == before
    assert write(mlflow, build(manifest_digest="cd" * 32), alias=ALIAS)
    assert [change["key"] for _, change in mlflow.changes[before:]] == ["plansmith.ranker.local-cpu.manifest"]


def test_alias_set_last_after_publication(mlflow: Mlflow) -> None:
    """An alias says that all is published of the newest version, and is set last."""
    assert write(mlflow, build(), build("refused", target="triton-26.03"), alias=ALIAS)
    assert write(mlflow, build(), alias=ALIAS, is_last=False)
    assert write(mlflow, build(), alias=ALIAS, is_whole=False)
    assert write(mlflow, build())
    assert mlflow.aliases["ranker"] == {"champion": "3"}
    assert write(mlflow, build(), build(target="triton-26.03"), alias=ALIAS)
    assert mlflow.aliases["ranker"] == {"champion": "3", ALIAS: "3"}
    assert mlflow.changes[-1][0] == "registered-models/alias"


def test_written_tags_start_nothing(mlflow: Mlflow) -> None:
    """What was written starts nothing, whether it is delivered or looked at."""
    assert write(mlflow, build(), alias=ALIAS)
    for path, change in mlflow.changes:
        entity, action = ("alias", "created") if path.endswith("alias") else ("tag", "set")
        value = {"entity": f"model_version_{entity}", "action": action, "timestamp": "", "data": change}
        sent = signed(HEADERS, value, delivery="d-1", timestamp=str(int(time.time())))
        result = read_delivery(
            config(mlflow, ALIAS), sent.headers, sent.body, registry="mlflow", secrets=[SECRET], now=time.time()
        )
        assert isinstance(result, Ignored), change
    rules = [Rule(registry="mlflow", model="*", when=when, spec="a.yaml") for when in ("alias", "tag")]
    poller = MlflowPoller("mlflow", config(mlflow, ALIAS), rules, environment={}, tell=print)
    values = {event.value for delivery in poller.poll(NOW) for event in delivery.events}
    assert values == {"champion", "compile=requested"}


def test_missing_version_and_values_refused(mlflow: Mlflow) -> None:
    """A version that is gone and what MLflow does not take are refused."""
    with pytest.raises(UsageError, match="there is no version 9 of ranker"):
        write(mlflow, build(), event=version(number=9))
    mlflow.answer = 400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid\\n tag"}'
    with pytest.raises(UsageError, match="refuses model-versions/get: Invalid tag"):
        write(mlflow, build())


@pytest.mark.parametrize(
    ("status", "says", "passes"),
    [(503, "does not answer as MLflow does", True), (403, "lets nobody in", False), (404, "HTTP 404", False)],
)
def test_misanswering_server_is_fault(mlflow: Mlflow, status: int, says: str, passes: bool) -> None:
    """A server that does not answer as it should is a fault."""
    mlflow.answer = status, b"<html>"
    with pytest.raises(EnvironmentFault, match=says) as caught:
        write(mlflow, build())
    assert caught.value.transient is passes


def test_interrupted_server_told_rest_later(mlflow: Mlflow) -> None:
    """A server that goes away in between is told the rest later."""
    mlflow.away_after = 2
    with pytest.raises(EnvironmentFault, match="HTTP 503"):
        write(mlflow, build())
    mlflow.away_after = None
    assert write(mlflow, build())
    keys = [change["key"] for _, change in mlflow.changes]
    assert len(keys) == len(set(keys)) == len(TOLD) + 1


def test_loser_writes_nothing_more(mlflow: Mlflow) -> None:
    """A writer that lost its telling writes nothing more."""
    left = iter([True, True, False])
    assert not write(mlflow, build(), still_ours=lambda: next(left))
    assert len(mlflow.changes) == 2


def test_mlflow_credentials_used_for_writing(mlflow: Mlflow) -> None:
    """The tags are written with the credentials of MLflow's own clients."""
    login = {"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}
    assert MlflowWriter(config(mlflow), login).write(telling(build(), event=version()), lambda: True)
    assert mlflow.credentials == {f"Basic {base64.b64encode(b'u:p').decode()}"}


@pytest.mark.parametrize("alias", ["latest", "v12", "V2", "a b", "ä", "x" * 256])
def test_impossible_alias_refused_in_file(alias: str) -> None:
    """An alias that MLflow would not take is refused in the file."""
    settings = {"type": "mlflow", "tracking_uri": "http://mlflow", "write_back": True, "write_back_alias": alias}
    with pytest.raises(ValueError, match="write_back_alias: MLflow takes"):
        MlflowRegistry.model_validate(settings)


def test_alias_without_write_back_refused() -> None:
    """An alias without writing back is refused in the file."""
    settings = {"type": "mlflow", "tracking_uri": "http://mlflow", "write_back_alias": ALIAS}
    with pytest.raises(ValueError, match="only with write_back: true"):
        MlflowRegistry.model_validate(settings)
