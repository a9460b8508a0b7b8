"""Inboxes for the tests of this folder."""

from __future__ import annotations

from ...support.triggers.fixtures import clock, database_server, inbox, postgresql_url, url

__all__ = ["clock", "database_server", "inbox", "postgresql_url", "url"]
