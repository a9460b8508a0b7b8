"""What only pages have keeps to the colours of the reports, and those that meet can be told apart."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from ...support.report.colours import READABLE, SCHEMES, VISIBLE, colours, contrast

CSS = files("plansmith.triggers.pages").joinpath("templates", "pages.css").read_text(encoding="utf-8")
MARKS = re.findall(r"\.mark(?:\.[a-z]+)? circle \{ fill: var\(--([a-z]+)\)", CSS)


def test_rules_share_palette_colours() -> None:
    """No rule has a colour of its own."""
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?=[;\s])|rgba?\(|hsla?\(", CSS)
    assert not set(re.findall(r"var\(--([a-z-]+)\)", CSS)) - colours("light").keys() - {"side"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_marks_are_seen(scheme: str) -> None:
    """Marks and what is drawn in them are seen."""
    palette = colours(scheme)
    assert len(MARKS) == 5
    for mark in MARKS:
        assert contrast(palette[mark], palette["page"]) >= VISIBLE
        assert contrast(palette[mark], palette["panel"]) >= VISIBLE
        assert contrast(palette["on-status"], palette[mark]) >= VISIBLE


@pytest.mark.parametrize("scheme", SCHEMES)
def test_fields_and_focus_are_seen(scheme: str) -> None:
    """Fields and what has the focus are seen."""
    palette = colours(scheme)
    for ground in ("page", "panel"):
        assert contrast(palette["muted"], palette[ground]) >= VISIBLE  # borders of fields
        assert contrast(palette["accent"], palette[ground]) >= VISIBLE  # outlines, and what is chosen
        assert contrast(palette["text"], palette[ground]) >= READABLE
