"""What a publication is in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plansmith.units import bytes_in_words

if TYPE_CHECKING:
    from plansmith.destinations import Publication


def publication_words(made: Publication) -> str:
    """Where a release is, as which version, under which aliases, and what had to be sent: of one line."""
    aliases = f" ({', '.join(made.aliases)})" if made.aliases else ""
    state = "already in" if made.unchanged else "published to"
    sent = f"{bytes_in_words(made.sent_bytes)} of {bytes_in_words(made.total_bytes)} sent"
    view = ", and shown in its repository" if made.view else ""
    return f"{state} {made.place} as version {made.version}{aliases}: {sent}{view}"
