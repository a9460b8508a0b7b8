"""What a real MLflow server holds is told as its webhooks would have told it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plansmith.config.service_triggers import MlflowRegistry, Rule
from plansmith.errors import EnvironmentFault
from plansmith.triggers.pollers.mlflow import MlflowPoller
from plansmith.triggers.registries.delivery import OWN_TAGS

from ...support.servers.mlflow_server import running


@pytest.mark.services
def test_real_server_tells_changes(tmp_path: Path) -> None:
    """A real server tells of aliases, tags and versions."""
    rule = Rule(registry="ours", model="*", when="alias", value="champion", spec="ranker.yaml")
    rules = (
        rule,
        rule.model_copy(update={"model": "ranker", "when": "created", "value": "*"}),
        rule.model_copy(update={"model": "o'ne", "when": "tag", "value": "*"}),
        rule.model_copy(update={"model": "absent"}),
    )
    messages: list[str] = []
    with running(tmp_path) as server:
        config = MlflowRegistry(type="mlflow", tracking_uri=server.url)
        poller = MlflowPoller("ours", config, rules, environment={}, tell=messages.append)

        def poll() -> list[tuple[str, str, str, str]]:
            events = [event for delivery in poller.poll(time.time()) for event in delivery.events]
            return [(event.model, event.version, event.change, event.value) for event in events]

        assert poll() == []
        for model in ("ranker", "o'ne", "third"):
            server.post("registered-models/create", name=model)
            server.post("model-versions/create", name=model, source="s3://models/x")
        server.post("model-versions/create", name="ranker", source="s3://models/y")
        server.post("registered-models/alias", name="ranker", alias="champion", version="2")
        server.post("registered-models/alias", name="third", alias="champion", version="1")
        server.post("registered-models/alias", name="third", alias="challenger", version="1")
        for key, value in (("compile", "requested"), (f"{OWN_TAGS}verdict", "passed")):
            server.post("model-versions/set-tag", name="o'ne", version="1", key=key, value=value)
        assert poll() == [
            ("o'ne", "1", "tag", "compile=requested"),
            ("ranker", "1", "created", ""),
            ("ranker", "2", "created", ""),
            ("ranker", "2", "alias", "champion"),
            ("third", "1", "alias", "champion"),
        ]
        server.post("registered-models/alias", name="ranker", alias="champion", version="1")
        assert ("ranker", "1", "alias", "champion") in poll()
        absent = ("'absent'", "'ranker'", '"o\'ne"')
        assert set(messages) == {
            f"no model at {server.url} is called like '*'",
            *(f"there is no model {name} at {server.url}" for name in absent),
        }
        assert len(messages) == 4
    with pytest.raises(EnvironmentFault, match="MLflow cannot be reached"):
        poll()
