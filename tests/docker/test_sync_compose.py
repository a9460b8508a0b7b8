"""Triton with a sync beside it: the services agree with each other, with the images and with the command line."""

from __future__ import annotations

from typing import Any

import yaml

from plansmith.cli import cli
from plansmith.cli.store.options import STORE_VARIABLE

from .instructions import COMPOSE, COMPOSE_SYNC, arguments, read

GLOBAL, STAGES = read()
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE_SYNC.read_text())["services"]
SYNC = STAGES["sync"]
REPOSITORY = "/work/artifacts/repository"


def _command_line(service: str) -> list[str]:
    """The command line of a service, without the program."""
    return [*SYNC.last("ENTRYPOINT").command(), *SERVICES[service]["command"]][1:]


def test_sync_command_is_valid() -> None:
    """The sync service is called as plansmith takes it."""
    for service in ("pull", "sync"):
        name, *arguments = (word.replace("${SYNC_NAME:-compose}", "compose") for word in _command_line(service))
        cli.commands[name].make_context("plansmith", arguments, resilient_parsing=False)
        assert SERVICES[service]["environment"][STORE_VARIABLE]
    assert {"--once", "--accept-older"} <= {*_command_line("pull")}
    assert "--url=grpc://server:8001" in _command_line("sync")
    assert "--once" not in _command_line("sync")


def test_triton_starts_after_first_pull() -> None:
    """Triton starts after the first pull and is followed from then on."""
    assert SERVICES["server"]["depends_on"] == {"pull": {"condition": "service_completed_successfully"}}
    assert SERVICES["pull"]["restart"] == "no"
    assert SERVICES["sync"]["depends_on"] == ["server"]


def test_triton_reads_shared_folder() -> None:
    """All share the folder that Triton reads, and Triton only reads it."""
    for service in ("pull", "sync"):
        assert f"--into={REPOSITORY}" in _command_line(service)
        assert SERVICES[service]["volumes"] == ["artifacts:/work/artifacts"]
    assert SERVICES["server"]["volumes"] == ["artifacts:/work/artifacts:ro"]
    assert f"--model-repository={REPOSITORY}" in STAGES["server"].last("ENTRYPOINT").command()
    assert SYNC.last("VOLUME").command() == ["/work/artifacts"]


def test_server_matches_other_file() -> None:
    """The server is that of the other file, except for who decides what it serves."""
    server = yaml.safe_load(COMPOSE.read_text())["services"]["server"]
    same = server.keys() & SERVICES["server"].keys()
    assert {key: SERVICES["server"][key] for key in same} == {key: server[key] for key in same}
    assert SERVICES["server"].keys() - same == {"command", "depends_on"} | SERVICES["server"].keys() - server.keys()


def test_sync_image_is_light() -> None:
    """The image that syncs is built from its stage, light and with a user of its own."""
    for service in ("pull", "sync"):
        assert SERVICES[service]["build"] == {"context": "..", "dockerfile": "docker/Dockerfile", "target": "sync"}
    assert SYNC.last("USER").text == STAGES["server"].last("USER").text
    assert SYNC.base == STAGES["worker-cpu"].base == "python:${PYTHON}"
    assert arguments(SYNC.instructions) == {}
    assert GLOBAL["PYTHON"]
    assert [text for text in SYNC.all("RUN") if "[client,s3]" in text]
