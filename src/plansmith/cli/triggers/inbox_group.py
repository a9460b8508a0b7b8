"""The group `plansmith triggers inbox`: without a command it lists, and options stand behind commands."""

from __future__ import annotations

import shlex

import click

from plansmith.errors import UsageError

_LIST = "list"


class InboxGroup(click.Group):
    """Lists where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As it is, with `list` before its options; where the shell completes nothing, a command may still follow.

        Raises:
            UsageError: options come before a command.
        """
        has_options = bool(args) and args[0].startswith("-") and args[0] not in ctx.help_option_names
        if has_options and not ctx.resilient_parsing:
            self._require_order(ctx, args)
        is_bare = not args and not ctx.resilient_parsing
        if is_bare or has_options:
            args = [_LIST, *args]
        return super().parse_args(ctx, args)

    def _require_order(self, ctx: click.Context, args: list[str]) -> None:
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] in self._with_value() else 1
        if at < len(args) and args[at] in self.commands:
            raise UsageError(
                f"options come after their command: {args[at]}, then {shlex.join(args[:at])}",
                remedy=f"{ctx.command_path} {shlex.join([*args[at:], *args[:at]])}",
            )

    def _with_value(self) -> set[str]:
        """The options of the commands that take the word behind them."""
        options = (one for command in self.commands.values() for one in command.params if isinstance(one, click.Option))
        return {name for one in options if not one.is_flag for name in one.opts}
