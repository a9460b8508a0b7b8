"""A report as a document: well-formed, with nothing from outside and nothing of others' as markup; and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from plansmith.records.release import Manifest
from plansmith.report.render import as_json, render, write
from plansmith.report.verdict import ReportFacts, facts_of

from ..support.report import examples
from ..support.report.page import Page

EVERY = ("int8", "fp16", "fp32", "trials")
HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;{{ 7*7 }}"


@pytest.mark.parametrize("name", EVERY)
def test_contents_links_lead_somewhere(name: str, pages: dict[str, Page]) -> None:
    """A link of the contents leads somewhere."""
    targets = {attributes["id"] for _, attributes in pages[name].elements if "id" in attributes}
    assert {attributes["href"].removeprefix("#") for attributes in pages[name].all("a")} <= targets


@pytest.mark.parametrize("name", EVERY)
def test_page_well_formed_and_self_contained(name: str, pages: dict[str, Page]) -> None:
    """A page is well formed and refers to nothing outside."""
    page = pages[name]
    assert page.unbalanced == []
    assert {tag for tag, _ in page.elements} & {"script", "iframe", "img", "object", "embed", "form", "base"} == set()
    links = [
        attributes[key]
        for _, attributes in page.elements
        for key in ("href", "src", "action", "data")
        if key in attributes
    ]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not [attributes for _, attributes in page.elements if any(key.startswith("on") for key in attributes)]
    assert not re.search(r"url\(|@import|https?:", page.source)


@pytest.mark.parametrize("name", EVERY)
def test_foreign_names_never_become_markup(name: str, facts: dict[str, ReportFacts]) -> None:
    """Nothing that is named by others becomes markup."""
    plain = Page(render(facts[name]))
    hostile = Page(render(_poisoned(facts[name])))
    assert hostile.unbalanced == []
    assert [tag for tag, _ in hostile.elements if tag != "wbr"] == [tag for tag, _ in plain.elements if tag != "wbr"]
    assert HOSTILE in hostile.text("verdict")
    assert "<script" not in hostile.source
    assert "49" not in hostile.text("verdict")[:200]


@pytest.mark.parametrize("name", EVERY)
def test_json_holds_verdict_and_facts(name: str, facts: dict[str, ReportFacts]) -> None:
    """The JSON document holds the verdict and all facts."""
    report_facts = facts[name]
    document = json.loads(json.dumps(as_json(report_facts), allow_nan=False))
    assert (document["verdict"], document["failures"]) == (
        "passed" if report_facts.passed else "failed",
        report_facts.failures(),
    )
    assert list(document)[:3] == ["verdict", "failures", "nearest_to_a_limit"]
    assert (
        ReportFacts.model_validate({k: v for k, v in document.items() if k in ReportFacts.model_fields}) == report_facts
    )


def test_old_manifest_has_report() -> None:
    """A manifest from before there were data and recipes has a report."""
    fields = examples.int8_release().model_dump(mode="json")
    old = Manifest.model_validate({k: v for k, v in fields.items() if k not in {"data", "lowered"}})
    text = Page(render(facts_of(old))).text()
    assert "all-MiniLM-L6-v2 version 3" in text
    assert "Recipes tried" not in text


def test_report_overwrites_older_whole(facts: dict[str, ReportFacts], tmp_path: Path) -> None:
    """A report is written whole over an older one."""
    path = tmp_path / "logs" / "tiny.html"
    for name in ("fp16", "fp32"):
        write(facts[name], path)
        assert path.read_text(encoding="utf-8") == render(facts[name])
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.html"]


_KEYWORDS = {
    "verdict",
    "scheme",
    "kind",
    "precision",
    "engine",
    "metric",
    "pooling",
    "backend",
    "device",
    "created",
    "exporter",
}


def _poisoned(facts: ReportFacts) -> ReportFacts:
    """The same facts with hostile words in every text that is free, and in every name that keys are made of."""

    def poison(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {
                (
                    f"{k} {HOSTILE}" if key in {"settings", "options", "toolchain", "axes", "spec", "tolerances"} else k
                ): poison(v, k)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [poison(item, key) for item in value]
        if isinstance(value, str) and key == "output":
            return f"{value} {HOSTILE}"
        return f"{value} {HOSTILE}" if isinstance(value, str) and value and key not in _KEYWORDS else value

    fields = poison(facts.model_dump(mode="json"))
    assert isinstance(fields, dict)
    fields["spec"] = facts.spec | {"note": HOSTILE}
    return ReportFacts.model_validate(fields)
