"""Completion in bash, which takes MODEL@VERSION for three words."""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_BREAK = "@"


class AtComplete(BashComplete):
    """Puts together what readline took apart (COMP_WORDBREAKS has an @), and answers with the part from the @ on.

    Seen with bash 5.2: of `minilm@ch` the words are `minilm`, `@` and `ch`, and the answer replaces `@ch`.
    """

    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the current one, and that one as far as it is typed."""
        parts = os.environ["COMP_WORDS"].split("\n")  # so the script of click's joins them
        current = int(os.environ["COMP_CWORD"])
        words: list[str] = []
        for number, part in enumerate(parts[: current + 1]):
            if words and number and _BREAK in {part, parts[number - 1]}:
                words[-1] += part
            else:
                words.append(part)
        incomplete = words.pop() if current < len(parts) else ""
        self._before = incomplete.partition(_BREAK)[0] if _BREAK in incomplete else ""
        return split_arg_string("\n".join(words[1:])), "".join(split_arg_string(incomplete))

    def format_completion(self, item: CompletionItem) -> str:
        """What takes the place of the word, or of its part from the @ on."""
        return super().format_completion(CompletionItem(item.value.removeprefix(self._before), item.type))


def offer_in_bash() -> None:
    """Answer bash so from now on."""
    add_completion_class(AtComplete)
