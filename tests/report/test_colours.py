"""The declared colours are told apart by everybody: contrast as WCAG 2.2 counts it, in both schemes and on paper."""

from __future__ import annotations

import re

import pytest

from ..support.report.colours import CSS, READABLE, SCHEMES, VISIBLE, colours, contrast

TEXT = ("text", "muted", "accent", "good", "bad", "caution")


def test_the_measure_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["page", "panel"])
@pytest.mark.parametrize("name", TEXT)
def test_every_text_can_be_read(name: str, ground: str, scheme: str) -> None:
    known = colours(scheme)
    assert contrast(known[name], known[ground]) >= READABLE


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["good", "bad"])
def test_words_on_a_status_can_be_read(name: str, scheme: str) -> None:
    known = colours(scheme)
    assert contrast(known["on-status"], known[name]) >= READABLE


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["accent", "good", "bad"])
def test_a_bar_is_seen_on_its_track(name: str, scheme: str) -> None:
    known = colours(scheme)
    assert contrast(known[name], known["track"]) >= VISIBLE


def test_no_rule_has_a_colour_of_its_own() -> None:
    rules = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?=[;\s])|rgba?\(|hsla?\(", rules)
