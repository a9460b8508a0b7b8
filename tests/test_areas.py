"""`make test-changed` takes the areas that a change can reach, and no others."""

from __future__ import annotations

import pytest

from .areas import Outcome, areas, areas_of, table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "within", "without"),
    [
        ("src/plansmith/stores/backend/folder.py", {"stores", "fleet", "flows", "cli", "triggers"}, {"data"}),
        ("compilers/export/export.py", {"compilers", "steps"}, {"data", "triggers"}),
        ("src/plansmith/report/templates/report.html", {"report", "cli"}, {"data"}),
        ("tests/support/triggers/inboxes.py", {"triggers"}, {"stores", "triton"}),
        ("configs/targets/local-cpu.yaml", {"config"}, {"data"}),
        ("docker/Dockerfile", {"docker"}, {"stores"}),
        ("constraints.txt", set(areas()), set()),
        ("README.md", set(), set(areas())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_areas_of_a_change(changed: str, within: set[str], without: set[str]) -> None:
    result = set(areas_of([changed]))
    assert within <= result
    assert not without & result


def test_table_sums_up_areas() -> None:
    outcomes = [Outcome("stores", 10, 1, 20.4, 1), Outcome("triton", 30, 0, 100.0, 0)]
    assert table(outcomes).splitlines() == [
        "AREA           TESTS  FAILED  SECONDS",
        "triton            30       0      100",
        "stores            10       1       20",
        "all               40       1      120",
    ]
