"""The Triton that `make servers` brings, and the packages of its stand-in backend; tests are skipped without them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triton.server import environment
from plansmith.triton.server.installation import Installation, find_installation


@pytest.fixture(scope="session")
def installation() -> Installation:
    try:
        return find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))


@pytest.fixture(scope="session")
def site() -> Path:
    try:
        return environment.runtime_folder(version("onnxruntime"))
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
