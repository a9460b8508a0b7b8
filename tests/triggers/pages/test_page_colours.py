"""What only pages have keeps to the colours of the reports, and those that meet can be told apart."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from ...support.report.colours import READABLE, SCHEMES, VISIBLE, colours, contrast

CSS = files("plansmith.triggers.pages").joinpath("templates", "pages.css").read_text(encoding="utf-8")
MARKS = re.findall(r"\.mark(?:\.[a-z]+)? circle \{ fill: var\(--([a-z]+)\)", CSS)


def test_no_rule_has_a_colour_of_its_own() -> None:
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?=[;\s])|rgba?\(|hsla?\(", CSS)
    assert not set(re.findall(r"var\(--([a-z-]+)\)", CSS)) - colours("light").keys() - {"side"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_marks_and_what_is_drawn_in_them_are_seen(scheme: str) -> None:
    known = colours(scheme)
    assert len(MARKS) == 5
    for mark in MARKS:
        assert contrast(known[mark], known["page"]) >= VISIBLE
        assert contrast(known[mark], known["panel"]) >= VISIBLE
        assert contrast(known["on-status"], known[mark]) >= VISIBLE


@pytest.mark.parametrize("scheme", SCHEMES)
def test_fields_and_what_has_the_focus_are_seen(scheme: str) -> None:
    known = colours(scheme)
    for ground in ("page", "panel"):
        assert contrast(known["muted"], known[ground]) >= VISIBLE  # borders of fields
        assert contrast(known["accent"], known[ground]) >= VISIBLE  # outlines, and what is chosen
        assert contrast(known["text"], known[ground]) >= READABLE
