"""Inboxes, and the processes that work on one."""
