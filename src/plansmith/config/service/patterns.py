"""Patterns of names, in which * stands for any letters and ? for one; and what two of them have in common."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

# A letter that stands in no pattern, for all of those that a ? or * takes beside the ones that are written out.
_OTHER = "\0"

_States = frozenset[int]


def is_match(text: str, pattern: str) -> bool:
    """Whether a pattern takes a text; small letters and capitals differ, and [ is a letter as any other."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def is_overlapping(one: str, other: str) -> bool:
    """Whether there is a text that both patterns take."""
    return any(_ends(mine, one) and _ends(theirs, other) for mine, theirs in _walk(one, other))


def is_covering(wide: str, narrow: str) -> bool:
    """Whether a pattern takes every text that another one takes."""
    return not any(_ends(inner, narrow) and not _ends(outer, wide) for inner, outer in _walk(narrow, wide))


def _walk(one: str, other: str) -> Iterator[tuple[_States, _States]]:
    """Where two patterns stand after each text, as far as it makes a difference.

    A state is how many characters of a pattern are used up; texts of the letters of both and one more tell all apart.
    """
    letters = sorted({*one, *other, _OTHER} - {"*", "?"})
    begin = (_without_stars(one, {0}), _without_stars(other, {0}))
    seen, left = {begin}, [begin]
    while left:
        mine, theirs = left.pop()
        yield mine, theirs
        for letter in letters:
            after = (_after(one, mine, letter), _after(other, theirs, letter))
            if after not in seen:
                seen.add(after)
                left.append(after)


def _after(pattern: str, states: _States, letter: str) -> _States:
    took = {place if pattern[place] == "*" else place + 1 for place in states if _takes(pattern, place, letter)}
    return _without_stars(pattern, took)


def _takes(pattern: str, place: int, letter: str) -> bool:
    return place < len(pattern) and pattern[place] in {"*", "?", letter}


def _without_stars(pattern: str, states: set[int]) -> _States:
    """States with those that are reached as stars stand for nothing."""
    found = set(states)
    for place in states:
        end = place
        while end < len(pattern) and pattern[end] == "*":
            end += 1
            found.add(end)
    return frozenset(found)


def _ends(states: _States, pattern: str) -> bool:
    return len(pattern) in states
