"""A text that grows token by token, told in pieces that never have to be taken back."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_UNFINISHED = "\ufffd"


class GrowingText:
    """The answer to one text while it is generated.

    What later tokens may still change is held back: the bytes of a character that is not whole yet and, where the
    tokenizer takes spaces out before punctuation, all from the last space on.

    Args:
        tokenizer: decodes tokens.
        ends: ids that end an answer.
        tell: takes each piece; None where nobody listens.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int], tell: Callable[[str], None] | None) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._tell = tell
        self._tokens: list[int] = []
        self._is_ended = False
        self.told = ""

    def restart(self) -> None:
        """Hear the same answer from its beginning; what was told is not told again."""
        self._tokens, self._is_ended = [], False

    def add(self, token: int) -> None:
        """Take the next token; those behind the end are padding."""
        if self._is_ended or self._tell is None:
            return
        self._tokens.append(token)
        self._is_ended = token in self._ends
        text = self._settled()
        if len(text) > len(self.told) and text.startswith(self.told):
            piece, self.told = text[len(self.told) :], text
            self._tell(piece)

    def rest(self, text: str) -> str | None:
        """What is left to tell of the whole answer; None where something else was told before."""
        return text[len(self.told) :] if text.startswith(self.told) else None

    def _settled(self) -> str:
        kept = len(self._tokens)
        while kept and _BYTE.fullmatch(self._tokenizer.convert_ids_to_tokens(self._tokens[kept - 1]) or ""):
            kept -= 1
        text = decoded(self._tokenizer, self._tokens[:kept]).rstrip(_UNFINISHED)
        if getattr(self._tokenizer, "clean_up_tokenization_spaces", False):
            return text[: max(text.rfind(" "), 0)]
        return text


def decoded(tokenizer: Any, tokens: list[int]) -> str:
    """The text of tokens, without special ones."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text
