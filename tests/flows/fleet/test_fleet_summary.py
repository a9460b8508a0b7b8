"""What a fleet run tells of its models, in the order of the plan."""

from __future__ import annotations

from plansmith.fleet.build import outcome_of
from plansmith.fleet.records import PlannedModel
from plansmith.flows.fleet.run import _summary


def test_same_name_models_keep_order() -> None:
    """Models of one name in several repositories keep their order."""
    planned = [
        PlannedModel(model="a", target="local-cpu", file="/a.yaml", state="stale", repository=f"/{name}")
        for name in ("first", "second", "third")
    ]
    ended = [outcome_of(member, "published", version=number) for number, member in enumerate(planned, 1)]
    assert list(_summary(planned, ended[::-1], 0).outcomes) == ended
