"""`plansmith serve --sagemaker`: an endpoint on this machine, of a repository, an archive, or many archives."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plansmith.config.targets import DEFAULT_TARGET
from plansmith.triton.repository.repository import ModelRepository

from ...support.cli.command import CommandLine
from ...support.cli.in_process import InProcess
from ...support.sagemaker.front_end import BODY, FrontEnd, number_in
from ...support.sagemaker.releases import TARGET, publish_ensemble, publish_onnx

PORTS = [word for name in ("http", "grpc", "metrics", "sagemaker") for word in (f"--{name}-port", "0")]
"""Any free ones."""


@contextmanager
def serving(run: CommandLine, *arguments: str, **variables: str) -> Iterator[FrontEnd]:
    """The endpoint of a command line, which Ctrl-C ends."""
    with run.start("serve", "--sagemaker", *PORTS, *arguments, **variables) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        address = re.search(r"endpoint http://([\d.:]+)/", "".join(lines))
        try:
            assert address is not None, (lines, process.communicate())
            yield FrontEnd(address[1], Path())
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.usefixtures("installation", "site")
def test_endpoints(run_alone: CommandLine) -> None:
    """A script of a repository with the models that it asks, an archive, and a multi-model endpoint."""
    repository = ModelRepository(run_alone.folder / "artifacts" / "repository")
    for model in ("asker", "whole"):
        folder = run_alone.folder / "packages"
        publish_ensemble(repository, folder, model, script=model == "asker", target=DEFAULT_TARGET)
    with serving(run_alone, "asker") as endpoint:
        assert endpoint.ask("GET", "/ping").status == 200
        answer = endpoint.ask("POST", "/invocations", BODY)
        assert (number_in(answer), answer.document["model_name"]) == (1, "asker")
    packaged = run_alone.document("sagemaker", "package", "whole", "--target", TARGET, "--output", "model.tar.gz")
    with serving(run_alone, "--repository", "model.tar.gz", **packaged["archives"][0]["environment"]) as endpoint:
        assert number_in(endpoint.ask("POST", "/invocations", BODY)) == 1
    with serving(run_alone, SAGEMAKER_MULTI_MODEL="true") as endpoint:
        assert (endpoint.ask("GET", "/ping").status, endpoint.models()) == (200, {})


@pytest.mark.parametrize(
    ("words", "variables", "status", "says"),
    [
        (("one", "two"), {}, 2, ("serves one model", "SAGEMAKER_MULTI_MODEL=true")),
        (("--follow",), {}, 2, ("does not follow",)),
        (("one",), {"SAGEMAKER_MULTI_MODEL": "true"}, 2, ("starts with no model",)),
        ((), {}, 7, ("there are 2 models", "plansmith serve --sagemaker MODEL")),
        ((), {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "three"}, 7, ("three, does not exist",)),
    ],
)
def test_refusals(
    words: tuple[str, ...], variables: dict[str, str], status: int, says: tuple[str, ...], run: InProcess
) -> None:
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    for model in ("one", "two"):
        publish_onnx(repository, run.folder / "packages", model)
    assert repository.target() == TARGET
    answer = run("serve", "--sagemaker", *PORTS, *words, **variables)
    assert answer.status == status, answer
    assert not [part for part in says if part not in answer.message], answer.message
