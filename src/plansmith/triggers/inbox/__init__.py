"""Inbox: a table of requests that wait until each has become a run."""
