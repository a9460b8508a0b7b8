"""Routes of the status page and its linked pages, for the receiver's application."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plansmith.config.service import ServiceConfig
from plansmith.errors import PlansmithError
from plansmith.formatting import short_path
from plansmith.stores.diff import Differences
from plansmith.triggers.inbox.entry import STATES, State
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.pages import renderer
from plansmith.triggers.pages.cache import CachedResult, QueryCache
from plansmith.triggers.pages.query_results import (
    ErrorDetail,
    FleetModel,
    FleetResult,
    ModelResult,
    detail_from_error,
    read_report,
    report_of_compile,
    report_of_version,
)
from plansmith.triggers.pages.renderer import render, style_sheet
from plansmith.triggers.registries.parse import delivering

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    Handler = Callable[[Request], Awaitable[Response]]


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

_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::[0-9]{0,5})?")
_LOCALHOST = "localhost"
_FLEET_HINT = "The fleet lists all models."
_MOST_ENTRIES = 100
_THREADS = 2
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
Result = TypeVar("Result")


def page(text: str, status: int = 200) -> Response:
    """Return a page response that browsers and proxies must not store."""
    from starlette.responses import HTMLResponse

    headers = {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-store"}
    # File names may hold bytes that are no UTF-8.
    return HTMLResponse(text.encode(errors="replace"), status_code=status, headers=_SECURITY_HEADERS | headers)


def report(content: bytes) -> Response:
    """Return a report response, with the file's content unchanged."""
    from starlette.responses import HTMLResponse

    headers = {"Content-Security-Policy": _REPORT_POLICY, "Cache-Control": "no-store"}
    return HTMLResponse(content, headers=_SECURITY_HEADERS | headers)


def style(text: str) -> Response:
    """Return the style sheet response; its URL changes with its content."""
    from starlette.responses import Response

    headers = {"Cache-Control": f"public, max-age={_STYLE_SECONDS}, immutable"}
    return Response(text, media_type="text/css", headers=_SECURITY_HEADERS | headers)


def misdirected() -> Response:
    """Return the refusal of a request for a host that is not allowed, without repeating the host."""
    from starlette.responses import PlainTextResponse

    text = "This host name is not allowed. Use the service's address, or add the name to triggers.hosts in its file.\n"
    return PlainTextResponse(text, status_code=421, headers=_SECURITY_HEADERS | {"Cache-Control": "no-store"})


class AllowedHosts:
    """Allowlist of hosts in requests (against DNS rebinding).

    Args:
        names: besides localhost and every address; in any case.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_LOCALHOST, *map(_normalized, names)}

    def allows(self, headers: Sequence[str]) -> bool:
        """Whether a request names an allowed host.

        Args:
            headers: the request's `Host` headers: one, with a port or without.
        """
        match = _HOST.fullmatch(headers[0]) if len(headers) == 1 else None
        if match is None:
            return False
        name = _normalized(match["name"] or "")
        return name in self._names or _is_address(match["address"] or name)

    def protect(self, page: Handler) -> Handler:
        """Wrap a page handler so that it answers only requests for an allowed host."""

        async def answer(request: Request) -> Response:
            return await page(request) if self.allows(request.headers.getlist("host")) else misdirected()

        return answer


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


_FLEET_SECONDS, _MODEL_SECONDS, _DIFFERENCES_SECONDS = 60, 10, 600
"""The maximum age of a cached result; releases do not change."""


class StatusPages:
    """Status pages of a service; the working directory is the service's.

    Args:
        config: the service, with the section `triggers`.
        inbox: where deliveries are kept.
        cache: of queries; a new one when left out.
        clock: the current time.
        host: a name that the service listens at, allowed besides those in its file.
    """

    def __init__(
        self,
        config: ServiceConfig,
        inbox: Inbox,
        cache: QueryCache | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        host: str = "",
    ) -> None:
        assert config.triggers is not None
        self._config = config
        self._hooks = tuple(delivering(config.triggers.registries))
        self._hosts = AllowedHosts([host, *config.triggers.hosts] if host else config.triggers.hosts)
        self._inbox = inbox
        self._cache = cache or QueryCache()
        self._clock = clock
        # Deliveries and health checks have threads of their own.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pages")

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes of all pages."""
        from starlette.routing import Route

        pages = {
            "/": self._fleet_page,
            "/models/{name}": self._model_page,
            "/models/{name}/diff": self._differences_page,
            "/inbox": self._inbox_page,
            "/reports/{key}/{version}": self._version_report,
            "/reports/{key}/runs/{number}": self._compile_report,
            "/style.css": self._style_sheet,
        }
        return [Route(path, self._hosts.protect(page), methods=["GET"]) for path, page in pages.items()]

    async def unknown(self, request: Request) -> Response:
        """Return the page for an unknown URL."""
        return await self._hosts.protect(self._unknown_page)(request)

    async def _unknown_page(self, request: Request) -> Response:
        return await self._not_found(f"There is no page {request.url.path}")

    async def _fleet_page(self, request: Request) -> Response:
        fleet = await self._fleet()
        counts, inbox_error = await self._inbox_counts()
        state = request.query_params.get("state", "")
        state = state if state in renderer.FLEET_STATES else ""
        number = max(_number(request.query_params.get("page", "1")) or 1, 1)

        def rows() -> dict[str, Any]:
            every = renderer.fleet_rows(fleet.result.models) if fleet.result else []
            shown = [row for row in every if state in {"", row.model.status.state}]
            first = (number - 1) * renderer.ROWS_PER_PAGE
            return {
                "rows": shown[first : first + renderer.ROWS_PER_PAGE],
                "filters": renderer.fleet_filters(every, state),
                "page_links": renderer.page_links(len(shown), number, state),
            }

        return await self._page(
            "fleet.html",
            rows,
            fleet=fleet,
            state=state,
            specs=self._config.specs,
            counts=counts,
            inbox_error=inbox_error,
        )

    async def _model_page(self, request: Request) -> Response:
        name = request.path_params["name"]
        fleet, models = await self._models(name)
        if fleet.result is None:
            return await self._pending(fleet)
        if not models:
            return await self._not_found(f"There is no model {name}", _FLEET_HINT)
        query = {"about": "model", "models": [model.model_dump(mode="json") for model in models]}
        cached = await self._cache.get(ModelResult, query, max_age_seconds=_MODEL_SECONDS)

        def sections() -> dict[str, Any]:
            histories = cached.result.histories if cached.result else ()
            return {"sections": renderer.target_sections(models, histories)}

        return await self._page("model.html", sections, name=name, cached=cached)

    async def _differences_page(self, request: Request) -> Response:
        name, parameters = request.path_params["name"], request.query_params
        fleet, models = await self._models(name)
        if fleet.result is None:
            return await self._pending(fleet)
        model = next((item for item in models if item.key == parameters.get("of")), None)
        if model is None:
            return await self._not_found(f"There is no such target of {name}", _FLEET_HINT)
        old, new = (_number(parameters.get(side, "")) for side in ("old", "new"))
        if old is None or new is None:
            return await self._not_found("Two versions are compared", f"The page of {name} lists them.", 400)
        if absent := [number for number in (old, new) if number not in model.status.versions]:
            return await self._not_found(f"{name} has no version {absent[0]}", f"The page of {name} lists them.")
        query = {
            "about": "differences",
            "repository": model.status.repository,
            "model": name,
            "old": old,
            "new": new,
        }
        cached = await self._cache.get(Differences, query, max_age_seconds=_DIFFERENCES_SECONDS)

        def reports() -> dict[str, Any]:
            return {"reports": [item for item in dict.fromkeys((old, new)) if report_of_version(model, item)]}

        return await self._page("diff.html", reports, name=name, model=model, old=old, new=new, cached=cached)

    async def _inbox_page(self, request: Request) -> Response:
        state = next((candidate for candidate in STATES if candidate == request.query_params.get("state")), None)
        now = self._clock()

        def read() -> dict[str, Any]:
            entries = self._inbox.entries(state=state, limit=_MOST_ENTRIES)
            return {
                "entries": entries,
                "write_backs": self._inbox.write_backs.of(*(entry.id for entry in entries)),
                "failed_write_backs": self._inbox.write_backs.counts()["set-aside"],
                "oldest_seconds": self._inbox.oldest_waiting(now),
            }

        counts, error_detail = await self._inbox_counts()
        listing: dict[str, Any] = {"entries": (), "failed_write_backs": 0, "oldest_seconds": None}
        if error_detail is None:
            try:
                listing = await self._in_thread(read)
            except Exception as error:  # noqa: BLE001 - the page is rendered all the same
                error_detail = detail_from_error(error, "inbox")
        return await self._page(
            "inbox.html",
            filters=renderer.inbox_filters(counts, state or "") if counts else [],
            state=state or "",
            error_detail=error_detail,
            now=now,
            database=short_path(self._inbox.place),
            hooks=self._hooks,
            limit=_MOST_ENTRIES,
            **listing,
        )

    async def _version_report(self, request: Request) -> Response:
        version = _number(request.path_params["version"])
        model = await self._model(request.path_params["key"])
        if model is None or version is None or version not in model.status.versions:
            return await self._no_report()
        return await self._report(lambda: report_of_version(model, version))

    async def _compile_report(self, request: Request) -> Response:
        number = _number(request.path_params["number"])
        model = await self._model(request.path_params["key"])
        if model is None or number is None:
            return await self._no_report()
        return await self._report(lambda: report_of_compile(model, number))

    async def _report(self, find: Callable[[], Path | None]) -> Response:
        def read() -> bytes | None:
            try:
                path = find()
            except (PlansmithError, OSError):
                return None
            return None if path is None else read_report(path)

        content = await self._in_thread(read)
        return await self._no_report() if content is None else report(content)

    async def _style_sheet(self, _request: Request) -> Response:
        return style(style_sheet())

    async def _fleet(self) -> CachedResult[FleetResult]:
        query = {"about": "fleet", "specs": list(self._config.specs)}
        return await self._cache.get(FleetResult, query, max_age_seconds=_FLEET_SECONDS)

    async def _models(self, name: str) -> tuple[CachedResult[FleetResult], list[FleetModel]]:
        fleet = await self._fleet()
        models = fleet.result.models if fleet.result else ()
        return fleet, [entry for entry in models if name and entry.status.model == name]

    async def _model(self, key: str) -> FleetModel | None:
        fleet = await self._fleet()
        return next((entry for entry in fleet.result.models if entry.key == key), None) if fleet.result else None

    async def _inbox_counts(self) -> tuple[Mapping[State, int], ErrorDetail | None]:
        try:
            return await self._in_thread(self._inbox.counts), None
        except Exception as error:  # noqa: BLE001 - the page is rendered all the same
            return {}, detail_from_error(error, "inbox")

    async def _pending(self, fleet: CachedResult[FleetResult]) -> Response:
        return await self._page("pending.html", status=503, fleet=fleet)

    async def _no_report(self) -> Response:
        return await self._not_found("There is no such report", "The page of a model links to its reports.")

    async def _not_found(self, message: str, hint: str = "", status: int = 404) -> Response:
        return await self._page("not_found.html", status=status, message=message, hint=hint)

    async def _page(
        self, template: str, more: Callable[[], dict[str, Any]] = dict, /, *, status: int = 200, **values: Any
    ) -> Response:
        """Render a page; `more` returns values that are slow to compute."""
        text = await self._in_thread(lambda: render(template, service=self._config.name, **values, **more()))
        return page(text, status)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
