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


def _words(service: str) -> list[str]:
    """The command line of a service, without the program."""
    return [*SYNC.last("ENTRYPOINT").words(), *SERVICES[service]["command"]][1:]


def test_what_syncs_is_called_as_plansmith_takes_it() -> None:
    for service in ("pull", "sync"):
        name, *words = (word.replace("${SYNC_NAME:-compose}", "compose") for word in _words(service))
        cli.commands[name].make_context("plansmith", words, resilient_parsing=False)
        assert SERVICES[service]["environment"][STORE_VARIABLE]
    assert {"--once", "--accept-older"} <= {*_words("pull")}
    assert "--url=grpc://server:8001" in _words("sync")
    assert "--once" not in _words("sync")


def test_triton_starts_after_the_first_pull_and_is_followed_from_then_on() -> None:
    assert SERVICES["server"]["depends_on"] == {"pull": {"condition": "service_completed_successfully"}}
    assert SERVICES["pull"]["restart"] == "no"
    assert SERVICES["sync"]["depends_on"] == ["server"]


def test_all_share_the_folder_that_triton_reads_and_triton_only_reads_it() -> None:
    for service in ("pull", "sync"):
        assert f"--into={REPOSITORY}" in _words(service)
        assert SERVICES[service]["volumes"] == ["artifacts:/work/artifacts"]
    assert SERVICES["server"]["volumes"] == ["artifacts:/work/artifacts:ro"]
    assert f"--model-repository={REPOSITORY}" in STAGES["server"].last("ENTRYPOINT").words()
    assert SYNC.last("VOLUME").words() == ["/work/artifacts"]


def test_the_server_is_that_of_the_other_file_but_for_who_decides_what_it_serves() -> None:
    other = yaml.safe_load(COMPOSE.read_text())["services"]["server"]
    same = other.keys() & SERVICES["server"].keys()
    assert {key: SERVICES["server"][key] for key in same} == {key: other[key] for key in same}
    assert SERVICES["server"].keys() - same == {"command", "depends_on"} | SERVICES["server"].keys() - other.keys()


def test_the_image_that_syncs_is_built_from_its_stage_as_a_user_of_its_own_and_light() -> None:
    for service in ("pull", "sync"):
        assert SERVICES[service]["build"] == {"context": "..", "dockerfile": "docker/Dockerfile", "target": "sync"}
    assert SYNC.last("USER").text == STAGES["server"].last("USER").text
    assert SYNC.base == STAGES["worker-cpu"].base == "python:${PYTHON}"
    assert arguments(SYNC.instructions) == {}
    assert GLOBAL["PYTHON"]
    assert [text for text in SYNC.all("RUN") if "[client,s3]" in text]
