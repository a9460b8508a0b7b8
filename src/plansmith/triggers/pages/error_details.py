"""Errors as pages show them: with what to do next, and without the internals of a bug."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime

from plansmith.errors import PlansmithError, first_line
from plansmith.triggers.pages.query_results import ErrorDetail

LOG = logging.getLogger("plansmith.pages")
"""A line of JSON for each bug that a page met, as its whole message."""


def known_error_detail(error: PlansmithError | OSError) -> ErrorDetail:
    """An error that a person can mend: one of plansmith's, or of the file system."""
    if isinstance(error, PlansmithError):
        return ErrorDetail(message=error.message, remedy=error.remedy)
    message = f"{error.filename}: {error.strerror}" if error.filename else first_line(error)
    return ErrorDetail(message=message, remedy="see that it is there, and that the user who runs this may read it")


def detail_from_error(error: Exception, about: str) -> ErrorDetail:
    """An error for a page; one that is not plansmith's own is a bug, and the log has its traceback.

    Args:
        error: of any kind.
        about: what was queried.
    """
    if isinstance(error, PlansmithError):
        return known_error_detail(error)
    line = {
        "event": "page",
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "about": about,
        "reason": f"{type(error).__name__}: {first_line(error)}",
        "traceback": "".join(traceback.format_exception(error)),
    }
    LOG.log(logging.ERROR, json.dumps(line))
    return ErrorDetail(message="a bug of plansmith's own", remedy="report it, with what this process logged")
