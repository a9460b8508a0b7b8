"""A real Caddy with the Caddyfile of docker/ before a real receiver."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ...support.deliveries.hostile import HOOK, signed_request
from ...support.deliveries.served import Served, served
from ...support.prefect.programs import Program, free_port, own_environment
from ...support.waiting import SECONDS

pytestmark = pytest.mark.services

CADDYFILE = Path(__file__).parents[3] / "docker" / "Caddyfile"
PER_MINUTE = 2


@contextmanager
def caddy_before(receiver: Served, folder: Path) -> Iterator[str]:
    """The address of a Caddy that passes on to a receiver, for the length of a block."""
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    environment = own_environment(
        HOOKS_SITE=site, HOOKS_SERVICE=f"127.0.0.1:{receiver.port}", HOME=str(folder), XDG_DATA_HOME=str(folder)
    )
    # Its port for administrators is one that two tests at once would share.
    text = f"{{\n\tadmin off\n\tauto_https off\n}}\n{CADDYFILE.read_text()}"
    (folder / "Caddyfile").write_text(text)
    program = str(Path(sys.executable).with_name("caddy"))  # make debian brings it
    command = [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    caddy = Program(command, folder / "caddy.log", environment)
    try:
        caddy.start(lambda: _answers(site), SECONDS)
        yield site
    finally:
        caddy.stop()


def _answers(site: str) -> bool:
    try:
        return httpx.get(f"{site}/healthz").status_code == 404
    except httpx.TransportError:
        return False


def _post(url: str, delivery: str, *, source: str, forwarded: str = "") -> int:
    """The status of a signed request that comes from an address of this machine."""
    sent = signed_request(delivery)
    headers = {**sent.headers, **({"X-Forwarded-For": forwarded} if forwarded else {})}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source)) as client:
        return client.post(f"{url}{HOOK}", content=sent.body, headers=headers, timeout=60).status_code


def test_proxied_senders_limited_separately(tmp_path: Path) -> None:
    """The proxy passes on /hooks/ alone, and a made-up X-Forwarded-For gives nobody a new limit."""
    with served(tmp_path / "service", per_minute=PER_MINUTE) as receiver, caddy_before(receiver, tmp_path) as url:
        first = [_post(url, f"a-{number}", source="127.0.0.2") for number in range(PER_MINUTE + 1)]
        second = _post(url, "b-0", source="127.0.0.3")
        forged = _post(url, "a-9", source="127.0.0.2", forwarded="203.0.113.7")
        assert (first, second, forged) == ([202] * PER_MINUTE + [429], 202, 429)
        for path in ("/metrics", "/healthz", "/"):
            assert httpx.get(f"{url}{path}").status_code == 404
        addresses = [line["address"] for line in receiver.lines if line["event"] == "delivery"]
    assert set(addresses) == {"127.0.0.2", "127.0.0.3"}, json.dumps(addresses)
