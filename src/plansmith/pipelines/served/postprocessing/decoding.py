"""Tokenization cleanup of decoded text, as transformers does it."""

from __future__ import annotations

_REPLACEMENTS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def clean_up(text: str) -> str:
    """Remove the spaces before punctuation, as a tokenizer with `clean_up_tokenization_spaces` does."""
    for spaced, joined in _REPLACEMENTS:
        text = text.replace(spaced, joined)
    return text
