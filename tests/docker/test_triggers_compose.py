"""The receiver behind its proxy: the services agree with each other, with the image and with the command line."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import click
import yaml

from plansmith.cli import cli

from .instructions import COMPOSE_TRIGGERS, ROOT

COMPOSED: dict[str, Any] = yaml.safe_load(COMPOSE_TRIGGERS.read_text())
TRIGGERS, PROXY = COMPOSED["services"]["triggers"], COMPOSED["services"]["proxy"]


def test_receiver_command_is_valid() -> None:
    """The receiver is called as plansmith takes it."""
    command: click.Command = cli
    arguments = list(TRIGGERS["command"])
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    command.make_context("plansmith", arguments, resilient_parsing=False)
    assert "ports" not in TRIGGERS, "only the proxy is reached from outside"


def test_only_proxy_addresses_believed() -> None:
    """Only the proxy is believed in what it says of addresses."""
    (network,) = COMPOSED["networks"]["hooks"]["ipam"]["config"]
    trusted = TRIGGERS["environment"]["FORWARDED_ALLOW_IPS"]
    assert PROXY["networks"]["hooks"]["ipv4_address"] == trusted
    assert ip_address(trusted) in ip_network(network["subnet"])


def test_proxy_reads_mounted_file() -> None:
    """The proxy reads the file that is mounted."""
    mounted = [volume.split(":")[0] for volume in PROXY["volumes"]]
    assert "./Caddyfile" in mounted
    text = (ROOT / "docker" / "Caddyfile").read_text()
    assert "{$HOOKS_SERVICE:triggers:8420}" in text
    assert set(PROXY["environment"]) == {"HOOKS_SITE"}
