"""Responses with security headers: a browser may show them and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response

_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_BASE_POLICY = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; img-src data:"

# Pages load one style sheet, and have forms that lead to pages. Reports hold their style, and are files that somebody
# may have changed: nothing in them runs, and each has an origin of its own (sandbox).
_PAGE_POLICY = f"{_BASE_POLICY}; style-src 'self'; form-action 'self'"
_REPORT_POLICY = f"{_BASE_POLICY}; style-src 'unsafe-inline'; form-action 'none'; sandbox"

_STYLE_SECONDS = 365 * 24 * 3600


def page(text: str, status: int = 200) -> Response:
    """A page, which no browser or proxy may store."""
    from starlette.responses import HTMLResponse

    headers = {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-store"}
    # File names may hold bytes that are no UTF-8.
    return HTMLResponse(text.encode(errors="replace"), status_code=status, headers=_SECURITY_HEADERS | headers)


def report(content: bytes) -> Response:
    """A report as it is on the disk."""
    from starlette.responses import HTMLResponse

    headers = {"Content-Security-Policy": _REPORT_POLICY, "Cache-Control": "no-store"}
    return HTMLResponse(content, headers=_SECURITY_HEADERS | headers)


def style(text: str) -> Response:
    """The style sheet; its URL changes with its content."""
    from starlette.responses import Response

    headers = {"Cache-Control": f"public, max-age={_STYLE_SECONDS}, immutable"}
    return Response(text, media_type="text/css", headers=_SECURITY_HEADERS | headers)


def misdirected() -> Response:
    """The refusal of a request for a host that is not allowed; the host itself is not repeated."""
    from starlette.responses import PlainTextResponse

    text = "This host name is not allowed. Use the service's address, or add the name to triggers.hosts in its file.\n"
    return PlainTextResponse(text, status_code=421, headers=_SECURITY_HEADERS | {"Cache-Control": "no-store"})
