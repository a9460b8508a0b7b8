"""What the compose file of a team says to Prefect, as Prefect understands it."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import yaml
from prefect.settings import Settings

from .instructions import ROOT

TEXT = (ROOT / "docker" / "compose.flows.yaml").read_text()
SERVICES = yaml.safe_load(TEXT)["services"]
PAGES = "http://127.0.0.1:4200"


def _settings(service: str, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    """Prefect's settings in a container of a service."""
    for key, value in SERVICES[service]["environment"].items():
        monkeypatch.setenv(key, _filled(value, environment))
    return Settings()


def _filled(text: str, environment: dict[str, str]) -> str:
    """Text with its variables as Compose fills them in: ${NAME}, ${NAME:-what else} and ${NAME:?what is missing}."""

    def value(match: re.Match[str]) -> str:
        return environment.get(match[1], match[3] if match[2] == ":-" else "x:y")

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, text)


@pytest.mark.parametrize("pages", [PAGES, "https://prefect.example.org"])
def test_page_addresses_can_be_opened(pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and links have addresses that people can open."""
    variables = {} if pages == PAGES else {"PREFECT_PAGES": pages}
    server = _settings("server", monkeypatch, **variables)
    assert (server.server.ui.api_url, server.ui_url) == (f"{pages}/api", pages)
    assert SERVICES["server"]["ports"] == ["127.0.0.1:4200:4200"]
    for client in ("worker", "deploy"):
        assert _settings(client, monkeypatch, **variables).ui_url == pages


def test_queue_places_survive_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds a place in a queue is remembered across a restart."""
    server = _settings("server", monkeypatch)
    storage: Any = importlib.import_module(server.server.concurrency.lease_storage).ConcurrencyLeaseStorage()
    folders = [volume.split(":")[1] for volume in SERVICES["server"]["volumes"]]
    leases = server.home / "concurrency_leases"
    assert hasattr(storage, "storage_path"), "in memory"
    assert [folder for folder in folders if str(leases).startswith(f"{folder}/")]
