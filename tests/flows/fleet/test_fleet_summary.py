"""What a fleet run tells of its models, in the order of the plan."""

from __future__ import annotations

from plansmith.fleet.build import outcome_of
from plansmith.fleet.records import PlannedModel
from plansmith.flows.fleet.run import _summary


def test_models_of_one_name_in_several_repositories_keep_their_order() -> None:
    planned = [
        PlannedModel(model="a", target="local-cpu", file="/a.yaml", state="stale", repository=f"/{name}")
        for name in ("first", "second", "third")
    ]
    ended = [outcome_of(one, "published", version=number) for number, one in enumerate(planned, 1)]
    assert list(_summary(planned, ended[::-1], 0).outcomes) == ended
