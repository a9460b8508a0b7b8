"""What the images name is there: targets, commands, extras, files; and they are what a registry should be given."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from plansmith.cli import cli
from plansmith.config.target_names import runtime_names
from plansmith.config.targets import load_target, require_onnxruntime

from .instructions import COMPOSE, DOCKERFILE, ROOT, Stage, arguments, filled, read

IMAGES = ("worker", "worker-cpu", "server")
GLOBAL, STAGES = read()
COMPOSED: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
OF_NVIDIA = [name for name in runtime_names() if name.startswith("triton-")]


def _chain(name: str) -> Iterator[Stage]:
    """A stage and those that it starts from."""
    while name in STAGES:
        yield STAGES[name]
        name = STAGES[name].base


@pytest.mark.parametrize("name", OF_NVIDIA)
def test_base_image_matches_target(name: str) -> None:
    """The base image of a release is that of its target."""
    target = load_target(name)
    for device in target.devices:
        release = name.removeprefix("triton-")
        assert filled("${BASE}", GLOBAL | {"RELEASE": release}) == target.images[device]


def test_default_release_takes_all_models() -> None:
    """The release that is built by default is a target that can have plans and ONNX models."""
    target = load_target(f"triton-{GLOBAL['RELEASE']}")
    assert target.tensorrt is not None
    require_onnxruntime(target)


def test_base_image_has_targets_tensorrt() -> None:
    """Every target that plans can be built for has its TensorRT in some base image."""
    bases = [load_target(name).tensorrt for name in OF_NVIDIA]
    for name in runtime_names():
        stated = load_target(name).tensorrt
        if stated is not None and tuple(map(int, stated.split(".")[:2])) >= (10, 12):
            assert [base for base in bases if base and f"{base}.".startswith(f"{stated}.")], name


def test_image_checked_before_large_installs() -> None:
    """The image is checked against the target of its release before anything large is installed."""
    checks = [text for text in STAGES["checked"].all("RUN") if "--check-image" in text]
    assert ['"triton-${RELEASE}"' in text for text in checks] == [True]
    assert "RELEASE" in arguments(STAGES["checked"].instructions)
    assert not [text for text in STAGES["checked"].all("RUN") if "[compile" in text]
    assert STAGES["worker"].base == "checked"
    assert [text for text in STAGES["server"].all("COPY") if text.startswith("--from=checked ")]
    assert STAGES["server"].base == STAGES["checked"].base == "${BASE}"


def test_cpu_worker_has_cpu_target() -> None:
    """The target of the CPU worker is one for CPUs."""
    target = load_target(arguments(STAGES["worker-cpu"].instructions)["CPU_TARGET"])
    assert target.device == "cpu"
    require_onnxruntime(target)


def _commands(stage: Stage) -> Iterator[list[str]]:
    """The command lines of plansmith in a stage, without the program; CMD goes on where ENTRYPOINT ends."""
    for name in ("RUN", "HEALTHCHECK", "ENTRYPOINT"):
        for text in stage.all(name):
            parts = [stage.last(name).command()] if name != "RUN" else [shlex.split(part) for part in text.split("&&")]
            for tokens in parts:
                command_line = [*tokens, *stage.last("CMD").command()] if name == "ENTRYPOINT" else tokens
                programs = [
                    number for number, word in enumerate(command_line) if word.rpartition("/")[2] == "plansmith"
                ]
                if programs and (name != "RUN" or programs[0] == 0):
                    yield command_line[programs[0] + 1 :]


@pytest.mark.parametrize("stage", STAGES)
def test_stage_commands_are_valid(stage: str) -> None:
    """Every plansmith command of a stage is one that plansmith takes."""
    command_lines = list(_commands(STAGES[stage]))
    assert len(command_lines) == {"checked": 1, "worker": 2, "worker-cpu": 3, "sync": 1}.get(stage, 0)
    for command_line in command_lines:
        arguments = [word.partition(">")[0] for word in command_line if not word.startswith(">")]
        command: click.Command = cli
        while isinstance(command, click.Group):
            command = command.commands[arguments.pop(0)]
        command.make_context("plansmith", arguments, resilient_parsing=False)


def test_installed_extras_exist() -> None:
    """The extras that are installed exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r'"\$1\[([a-z0-9,]+)\]"', DOCKERFILE.read_text())
    assert named == ["compile,data,flows,tensorrt", "compile,data,flows,mlflow,triggers", "client,s3"]
    assert {extra for names in named for extra in names.split(",")} <= set(extras)


def test_wheel_built_from_visible_files() -> None:
    """The wheel is built from files that Git has and that the build may see."""
    copied = [word for text in STAGES["wheel"].all("COPY") for word in shlex.split(text)[:-1]]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(any(f"{path}/".startswith(f"{source}/") for path in tracked.splitlines()) for source in copied)
    everything, *rules = [r for r in (ROOT / ".dockerignore").read_text().splitlines() if r and not r.startswith("#")]
    assert everything == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(copied)
    links = [path.readlink() for path in (ROOT / "src" / "plansmith").iterdir() if path.is_symlink()]
    linked = {link.relative_to("../..").as_posix() for link in links}
    assert linked | {"src", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "constraints.txt"} == set(copied)


@pytest.mark.parametrize("name", IMAGES)
def test_image_runs_as_own_user(name: str) -> None:
    """An image runs as a user of its own and says whether it is healthy."""
    stage = STAGES[name]
    user = stage.last("USER").text
    assert user == "10001:10001"
    assert f"--uid {user.partition(':')[0]} " in " ".join(stage.all("RUN"))
    assert stage.last("HEALTHCHECK").command()
    after = [instruction.name for instruction in stage.instructions][
        [instruction.name for instruction in stage.instructions].index("USER") :
    ]
    assert "RUN" not in after


def test_requirements_go_into_server_python() -> None:
    """What Python models need goes into the Python of the server and not into another."""
    stage = STAGES["server-python"]
    assert stage.base == "server"
    (install,) = stage.all("RUN")
    assert "python3 -m pip install" in install  # the image's own, which the Python backend was built for
    assert "--mount=type=bind,from=requirements,target=/requirements" in install
    assert "--requirement /requirements/requirements.txt" in install
    assert {"--mount=type=bind,from=wheel,source=/wheels,target=/wheels", "--find-links"} <= set(install.split())
    assert stage.last("USER").text == STAGES["server"].last("USER").text
    assert STAGES["requirements"].base == "scratch"  # that of the build's context has to be given
    readme = (ROOT / "docker" / "README.md").read_text()
    assert "--target server-python" in readme
    assert "--build-context requirements=requirements" in readme


@pytest.mark.parametrize("base", sorted({stage.base for stage in STAGES.values()} - {*STAGES, "scratch"}))
def test_base_image_has_own_tag(base: str) -> None:
    """A base image has a tag of its own."""
    image = filled(base, GLOBAL)
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+|nvcr\.io/nvidia/tritonserver:\d\d\.\d\d-py3", image)


@pytest.mark.parametrize("file", sorted((ROOT / "docker").iterdir()), ids=lambda file: file.name)
def test_no_package_index_is_named(file: Any) -> None:
    text = file.read_text()
    assert not re.search(r"index-url|PIP_INDEX|trusted-host|UV_INDEX", text)
    assert set(re.findall(r"https?://([\w.-]+)", text)) <= {"127.0.0.1", "server", "hooks.example.com"}


def test_services_build_declared_stages() -> None:
    """Each service builds a stage with arguments that it has and mounts volumes that are declared."""
    assert sorted(COMPOSED["services"]) == sorted(IMAGES)
    mounted = set()
    for name, service in COMPOSED["services"].items():
        build = service["build"]
        assert (build["target"], COMPOSE.parent / build["context"], build["dockerfile"]) == (
            name,
            COMPOSE.parent / "..",
            "docker/Dockerfile",
        )
        names = set(GLOBAL).union(*(arguments(stage.instructions) for stage in _chain(name)))
        assert set(build.get("args", {})) <= names
        mounted |= {volume.partition(":")[0] for volume in service["volumes"]}
        assert (COMPOSE.parent / "../configs").is_dir()
    assert mounted == {*COMPOSED["volumes"], "../configs"}
    assert set(re.findall(r"\$\{RELEASE:-([^}]+)\}", COMPOSE.read_text())) == {GLOBAL["RELEASE"]}


def test_gpu_reserved_where_needed() -> None:
    """What runs on a GPU reserves one, and nothing else does."""
    for name, service in COMPOSED["services"].items():
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        on_gpu = [stage for stage in _chain(name) if stage.base == "${BASE}"]
        assert [device["capabilities"] for device in devices] == [["gpu"] for _ in on_gpu]


def test_repository_shared_read_only() -> None:
    """The workers and the server share a repository that the server only reads."""
    services = COMPOSED["services"]
    assert "artifacts:/work/artifacts" in services["worker"]["volumes"]
    assert services["server"]["volumes"] == ["artifacts:/work/artifacts:ro"]
    served = f"--model-repository={STAGES['server'].last('WORKDIR').text}/artifacts/repository"
    assert served in STAGES["server"].last("ENTRYPOINT").command()
    for name in ("worker", "worker-cpu"):
        places = [volume.split(":")[1] for volume in services[name]["volumes"] if not volume.startswith("..")]
        assert STAGES[name].last("VOLUME").command() == places
    assert not [port for port in services["server"]["ports"] if not port.startswith("127.0.0.1:")]
