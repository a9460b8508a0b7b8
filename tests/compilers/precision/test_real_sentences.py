"""The sentences that precision is judged on are many, different, and language."""

from __future__ import annotations

from ...support.real_sentences import real_sentences


def test_enough_distinct_sentences() -> None:
    """There are enough sentences for calibration and evaluation, and no two are the same."""
    sentences = real_sentences()
    assert len(sentences) >= 400
    assert len(set(sentences)) == len(sentences)


def test_sentences_have_ordinary_length() -> None:
    """The sentences are of ordinary length and without code."""
    for sentence in real_sentences():
        assert sentence[0].isupper()
        assert sentence[-1] in ".?!"
        assert 6 <= len(sentence.split()) <= 45
        assert not set(sentence) & set("*`_=<>{}[]|~\\")


def test_both_sources_are_spread() -> None:
    """The first hundred are a fair sample: any cut gives calibration and evaluation of one kind."""
    sentences = real_sentences()
    share = [sum("data" in s for s in part) / len(part) for part in (sentences[:200], sentences[200:])]
    assert abs(share[0] - share[1]) < 0.1
