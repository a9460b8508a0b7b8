"""A page as its elements and the words between them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "wbr", "input"}
_JOINED = {"wbr", "b", "svg", "circle", "path", "i"}


class Page(HTMLParser):
    """An HTML text, read once.

    Args:
        source: of the page.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self._sections: dict[str, list[str]] = {"": []}
        self._section = ""
        self.feed(source)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag in {"section", "header"} and "id" in attributes:
            self._section = attributes["id"]
        self._note(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.unbalanced.append(f"</{tag}>")
        self._note(tag)
        if tag in {"section", "header"}:
            self._section = ""

    def handle_data(self, data: str) -> None:
        if "style" not in self._open and "title" not in self._open:
            self._sections.setdefault(self._section, []).append(data)

    def text(self, section: str = "") -> str:
        """The text of a section, or of the whole page, with single spaces."""
        parts = self._sections.get(section, []) if section else [p for texts in self._sections.values() for p in texts]
        return re.sub(r"\s+", " ", "".join(parts)).strip()

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def classed(self, name: str) -> list[dict[str, str]]:
        """The attributes of all elements of a class."""
        return [attributes for _, attributes in self.elements if name in attributes.get("class", "").split()]

    def _note(self, tag: str) -> None:
        if tag not in _JOINED:
            self._sections.setdefault(self._section, []).append(" ")
