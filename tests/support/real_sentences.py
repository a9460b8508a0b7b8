"""Natural English sentences without a network: what Python's manual and scikit-learn's data sets say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files

_WORDS = range(6, 45)
_LETTERS = 0.92
_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
_EMPHASIS = re.compile(r"\*(\w+)\*")
_CODE = re.compile(r"[*`_=<>{}\[\]|~\\]|\w\.\w")
_ITEM = re.compile(r"^\s*(?:[-*•]|\d+\.|\.\.)\s")
# A full stop that ends no sentence.
_SHORT = ("e.g.", "i.e.", "cf.", "vs.", "etc.", "Dr.", "al.", "pp.", "Vol.", "No.")


@cache
def real_sentences() -> tuple[str, ...]:
    """More than eight hundred different sentences, always in the same order, neighbours from different texts."""
    sentences = {sentence for text in _texts() for paragraph in _paragraphs(text) for sentence in _sentences(paragraph)}
    return tuple(sorted(sentences, key=lambda sentence: sha256(sentence.encode()).digest()))


def real_paragraphs() -> list[str]:
    """All prose that the sentences are taken from, and what is no whole sentence, too."""
    return [paragraph for text in _texts() for paragraph in _paragraphs(text)]


def _texts() -> Iterator[str]:
    from pydoc_data.topics import topics

    yield from topics.values()
    for file in (files("sklearn") / "datasets" / "descr").iterdir():
        if file.name.endswith(".rst"):
            yield file.read_text(encoding="utf-8")


def _paragraphs(text: str) -> Iterator[str]:
    """Runs of lines of one depth; what is set in deeper, after a colon, is an example and no prose."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if any(line.startswith("   ") and not _ITEM.match(line) for line in lines[:1]):
            continue
        yield " ".join(_ITEM.sub("", line).strip() for line in lines)


def _sentences(paragraph: str) -> Iterator[str]:
    for part in _END.split(_EMPHASIS.sub(r"\1", paragraph)):
        sentence = " ".join(part.split())
        plain = sum(c.isalpha() or c.isspace() for c in sentence)
        if (
            len(sentence.split()) in _WORDS
            and sentence[0].isupper()
            and sentence.endswith((".", "?", "!"))
            and not sentence.endswith(_SHORT)
            and sentence.count("(") == sentence.count(")")
            and not _CODE.search(sentence)
            and plain >= _LETTERS * len(sentence)
        ):
            yield sentence


if __name__ == "__main__":  # `make demo` takes them as data: one a line
    print(*real_sentences(), sep="\n")
