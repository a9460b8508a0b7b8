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

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1], found[3] if found[2] == ":-" else "x:y")

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, text)


@pytest.mark.parametrize("pages", [PAGES, "https://prefect.example.org"])
def test_pages_and_links_have_addresses_that_people_can_open(pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {} if pages == PAGES else {"PREFECT_PAGES": pages}
    server = _settings("server", monkeypatch, **given)
    assert (server.server.ui.api_url, server.ui_url) == (f"{pages}/api", pages)
    assert SERVICES["server"]["ports"] == ["127.0.0.1:4200:4200"]
    for client in ("worker", "deploy"):
        assert _settings(client, monkeypatch, **given).ui_url == pages


def test_who_holds_a_place_in_a_queue_is_remembered_over_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    server = _settings("server", monkeypatch)
    storage: Any = importlib.import_module(server.server.concurrency.lease_storage).ConcurrencyLeaseStorage()
    folders = [volume.split(":")[1] for volume in SERVICES["server"]["volumes"]]
    kept = server.home / "concurrency_leases"
    assert hasattr(storage, "storage_path"), "in memory"
    assert [folder for folder in folders if str(kept).startswith(f"{folder}/")]
