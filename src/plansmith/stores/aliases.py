"""What aliases stand for, and stood for before."""

from __future__ import annotations

from plansmith.stores.backend.documents import utc_now
from plansmith.stores.records import Catalogue, Pointer

_LONGEST_LINE = 50


def promoted(catalogue: Catalogue, number: int, alias: str, share: float | None = None) -> Catalogue:
    """A catalogue in which an alias stands for a version, whose files stand; the same one where it does already.

    Args:
        catalogue: as it is.
        number: the version.
        alias: the name.
        share: what part of the requests it should get, as a hint.
    """
    before = catalogue.aliases.get(alias)
    if before is not None and (before.version, before.share) == (number, share):
        return catalogue
    line = before.line if before is not None else ()
    line = line if line[-1:] == (number,) else (*line, number)
    return with_alias(catalogue, alias, Pointer(line=line[-_LONGEST_LINE:], share=share, moved=utc_now()))


def line_before(catalogue: Catalogue, alias: str) -> tuple[int, ...]:
    """The line that a rollback of an alias leads to; it ends with another version, whose files stand, or is empty."""
    line = catalogue.aliases[alias].line if alias in catalogue.aliases else ()
    others = {version.version for version in catalogue.standing()} - set(line[-1:])
    while line and line[-1] not in others:
        line = line[:-1]
    return line


def with_alias(catalogue: Catalogue, alias: str, pointer: Pointer) -> Catalogue:
    """A catalogue with another pointer; its aliases stay sorted."""
    return catalogue.model_copy(update={"aliases": dict(sorted({**catalogue.aliases, alias: pointer}.items()))})
