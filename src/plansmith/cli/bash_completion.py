"""Bash completion: handles MODEL@VERSION, which bash splits into three words."""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_BREAK = "@"


class AtComplete(BashComplete):
    """Completion of words with @: rejoins what readline split (COMP_WORDBREAKS contains @) and returns the part from @.

    Seen with bash 5.2: of `minilm@ch` the words are `minilm`, `@` and `ch`, and the answer replaces `@ch`.
    """

    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words and the incomplete current word."""
        parts = os.environ["COMP_WORDS"].split("\n")  # so the script of click's joins them
        current = int(os.environ["COMP_CWORD"])
        arguments: list[str] = []
        for number, part in enumerate(parts[: current + 1]):
            if arguments and number and _BREAK in {part, parts[number - 1]}:
                arguments[-1] += part
            else:
                arguments.append(part)
        incomplete = arguments.pop() if current < len(parts) else ""
        self._before = incomplete.partition(_BREAK)[0] if _BREAK in incomplete else ""
        return split_arg_string("\n".join(arguments[1:])), "".join(split_arg_string(incomplete))

    def format_completion(self, item: CompletionItem) -> str:
        """Format the replacement for the word, or for its part from the @ on."""
        return super().format_completion(CompletionItem(item.value.removeprefix(self._before), item.type))


def offer_in_bash() -> None:
    """Register this completion for bash."""
    add_completion_class(AtComplete)
