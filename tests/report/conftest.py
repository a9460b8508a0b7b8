"""The reports that all tests look at, as text and as parsed pages."""

from __future__ import annotations

import pytest

from plansmith.report.render import render
from plansmith.report.verdict import ReportFacts, facts_of

from ..support.report import examples, planned
from ..support.report.page import Page


@pytest.fixture(scope="session")
def facts() -> dict[str, ReportFacts]:
    """What each report tells of."""
    return {
        "int8": facts_of(examples.int8_release()),
        "fp16": examples.refused_fp16(),
        "fp32": examples.fp32_release(),
        "trials": examples.refused_recipes(),
        "plans": planned.planned_release(),
        "unrun": planned.unrun_release(),
    }


@pytest.fixture(scope="session")
def pages(facts: dict[str, ReportFacts]) -> dict[str, Page]:
    """The reports, read as a browser reads them."""
    return {name: Page(render(report_facts)) for name, report_facts in facts.items()}
