"""Under which names the pages are shown: not under those of somebody else that lead here."""

from __future__ import annotations

import httpx
import pytest

from plansmith.triggers.pages.cache import QueryCache
from plansmith.triggers.pages.routes import AllowedHosts, StatusPages
from plansmith.triggers.receiver.application import make_app

from ...support.deliveries.asgi import Answer
from .served import serving
from .site import Site, query_here, service

ALLOWED = AllowedHosts(["Plansmith.example.org", "build_box"])
ADDRESSES = ("/", "/inbox", "/models/ranker", "/models/ranker/diff", "/reports/a/1", "/style.css", "/nowhere")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8420", "10.0.0.7:80", "[::1]", "[::1]:8420", "[2001:db8::7]:8420", "0.0.0.0:8420"),
        *("localhost", "localhost:8420", "LOCALHOST", "localhost.:8420"),
        *("plansmith.example.org", "plansmith.example.org:443", "PLANSMITH.example.org.", "build_box:8420"),
    ],
)
def test_own_addresses_and_names_accepted(host: str) -> None:
    """Addresses, localhost and names that were given are ours."""
    assert ALLOWED.allows([host])


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8420", "a.plansmith.example.org", "plansmith.example.org.evil.example"),
        *("127.0.0.1.evil.example", "127.0.0.1@evil.example", "localhost.evil.example", "evil.localhost", "127.1"),
        *("[evil.example]", "[::1].evil.example", "[::1", "::1", "[]", "[]:80", "", ":8420", ".", "localhost:80:80"),
        *("localhost:port", "localhost ", " localhost", "localhost/", "localhost\n", "plansmith.example.org..", "*"),
        *("٣.٣.٣.٣", "localhost, evil.example", "127.0.0.1" * 10_000),
    ],
)
def test_everything_else_is_not(host: str) -> None:
    assert not ALLOWED.allows([host])


@pytest.mark.parametrize("headers", [[], ["localhost", "localhost"], ["evil.example", "localhost"]])
def test_a_request_has_one_host(headers: list[str]) -> None:
    assert not ALLOWED.allows(headers)


def _named(site: Site, host: str, address: str = "/") -> Answer:
    return site.ask(address, headers={"host": host})


@pytest.mark.parametrize("address", ADDRESSES)
def test_foreign_name_shows_no_page(site: Site, address: str) -> None:
    """No page is shown under the name of somebody else."""
    site.model("ranker")
    answer = _named(site, "evil.example:8420", address)
    assert (answer.status, answer.headers["content-type"]) == (421, "text/plain; charset=utf-8")
    assert b"triggers.hosts" in answer.body
    assert not [word for word in (b"evil", b"ranker", b"vision") if word in answer.body]
    assert answer.headers["cache-control"] == "no-store"
    assert not site.queries
    assert _named(site, "localhost:8420", address).status != 421


def test_configured_names_show_page(site: Site) -> None:
    """Names of the file and of the command line are shown the page."""
    config = service(site.place.folder, hosts=["plansmith.example.org"])
    assert config.triggers is not None
    pages = StatusPages(config, site.inbox, QueryCache(query_here), host="build.lan")
    site.app = make_app(config.triggers, site.inbox, {}, pages=pages)
    hosts = ("plansmith.example.org", "build.lan:8420", "other.example.org")
    assert [_named(site, host).status for host in hosts] == [200, 200, 421]


def test_hooks_and_probes_take_any_name(site: Site) -> None:
    """Hooks and what probes ask for go by any name."""
    requests = [("POST", "/hooks/ours"), ("GET", "/healthz"), ("GET", "/metrics"), ("GET", "/hooks/ours")]
    statuses = [
        site.ask(path, method, headers={"host": "plansmith.monitoring.svc"}).status for method, path in requests
    ]
    assert statuses == [401, 200, 200, 405]


@pytest.mark.slow
def test_listening_name_shows_page(site: Site) -> None:
    """The program shows its page under the name that it listens at."""
    (site.place.folder / "inbox.db").unlink()
    with serving(site.place.folder, "--host", "localhost") as (_, address):
        for host, status in {"localhost": 200, "127.0.0.1": 200, "evil.example": 421}.items():
            assert httpx.get(f"{address}/inbox", headers={"host": host}, timeout=60).status_code == status
