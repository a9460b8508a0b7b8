"""The Dockerfile is linted and the compose file held to its schema; no engine runs here that could build them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .instructions import COMPOSE, COMPOSE_SYNC, COMPOSE_TRIGGERS, DOCKERFILE, ROOT

TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

MISTAKES = {
    "DL3006": ("FROM python:${PYTHON} AS wheel", "FROM python AS wheel"),
    "DL3020": ("COPY configs configs", "ADD configs configs"),
    "DL3025": ('CMD ["doctor"]', "CMD doctor"),
    "DL3009": (" \\\n    && rm -rf /var/lib/apt/lists/*", ""),
    "DL3002": ("USER 10001:10001", "USER root"),
    "DL3011": ("EXPOSE 8000", "EXPOSE 80000"),
    "DL3014": ("install --yes", "install"),
    "SC2046": ("set -- /wheels/*.whl", "set -- $(ls /wheels)"),
    "SC1072": ('"triton-${RELEASE}"', '"triton-${RELEASE}'),
    "missing whitespace": ("WORKDIR /source", "WORKDIRS /source"),
}


def _run(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which(tool, path=TOOLS)
    assert program is not None, f"{tool} is not installed, which the extra `dev` names"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def _check_compose(file: Path) -> subprocess.CompletedProcess[str]:
    return _run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)


def test_hadolint_finds_nothing_to_say() -> None:
    linted = _run("hadolint", DOCKERFILE)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")


@pytest.mark.parametrize("rule", MISTAKES)
def test_hadolint_finds_planted_mistake(rule: str, tmp_path: Path) -> None:
    """Hadolint finds a mistake that was planted."""
    right, wrong = MISTAKES[rule]
    text = DOCKERFILE.read_text()
    assert right in text
    planted = tmp_path / "Dockerfile"
    planted.write_text(text.replace(right, wrong))
    linted = _run("hadolint", "--no-color", planted)
    assert linted.returncode == 1
    assert f" {rule} " in linted.stdout + linted.stderr


@pytest.mark.parametrize("file", [COMPOSE, COMPOSE_SYNC, COMPOSE_TRIGGERS], ids=lambda file: file.name)
def test_compose_file_follows_schema(file: Path) -> None:
    """A Compose file follows its schema."""
    checked = _check_compose(file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("profiles: [worker]", "profile: [worker]"), ("capabilities: [gpu]", "capabilities: gpu"), ("build:", "build: [")],
    ids=["a key that is none", "a value of another type", "no YAML"],
)
def test_compose_file_mistake_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    """A mistake in the Compose file is found."""
    text = COMPOSE.read_text()
    assert right in text
    planted = tmp_path / "compose.yaml"
    planted.write_text(text.replace(right, wrong))
    assert _check_compose(planted).returncode == 1


def test_make_check_runs_both() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile[makefile.index("\ncheck:  ") :]
    assert "$(BIN)/hadolint docker/Dockerfile" in recipe
    assert "$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose*.yaml" in recipe
