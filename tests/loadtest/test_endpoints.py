"""`plansmith loadtest` of SageMaker: endpoints, for which a small server stands, and a real front end of Triton."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plansmith.loadtest.results import LoadReport
from plansmith.sagemaker.selection import PackageRequest
from plansmith.triton.repository.repository import ModelRepository

from ..support.cli.command import COMMAND, check_refusal, environment
from ..support.loadtest.http_server import HttpServer, Response
from ..support.sagemaker.endpoints import write_endpoint
from ..support.sagemaker.front_end import FrontEnd, front_end, unpacked_archives
from ..support.sagemaker.releases import publish_onnx
from ..support.servers.aws_server import KEY_ID, SECRET, aws

if TYPE_CHECKING:
    from plansmith.triton.server.installation import Installation

    from .conftest import Command

__all__ = ["aws"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("busy_machine", "aws")]

PAUSE_SECONDS = 0.02
"""So that the client is not the limit."""
ANSWER = Response(after_seconds=PAUSE_SECONDS)

SOME_REQUESTS = 300
END_SECONDS = 90

BRIEF = ("--users", "2", "--seconds", "2", "--warm-up", "0.3s", "--output", "out", "--json")


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    """A server that speaks InvokeEndpoint."""
    with HttpServer(lambda _: ANSWER) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", f"http://{server.place}")
        yield server


@pytest.fixture
def releases(tmp_path: Path) -> ModelRepository:
    """Two releases for SageMaker, in the repository of the folder in which the command runs."""
    repository = ModelRepository(tmp_path / "artifacts" / "repository")
    for model in ("one", "two"):
        publish_onnx(repository, tmp_path / "sources", model)
    return repository


def aws_error(code: str, status: int, message: str, **fields: object) -> Response:
    body = json.dumps({"Message": message, **fields}).encode()
    return Response(status, body, PAUSE_SECONDS, headers={"x-amzn-ErrorType": f"{code}:http://internal.amazon.com/"})


def report_of(answer: object) -> LoadReport:
    return LoadReport.model_validate(answer.document)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("releases")
def test_invocations_are_signed(loadtest: Command, endpoint: HttpServer) -> None:
    """Each names archive and variant, and has the signature that AWS calculates; no key is in the report."""
    archives = ("--target-model", "one=one-1.tar.gz", "--target-model", "two=two-1.tar.gz")
    place = ("--endpoint", "prod", "--region", "eu-west-1", "--target-variant", "blue")
    answer = loadtest("one=9", "two", *place, *archives, "--batch", "2", *BRIEF)
    assert answer.status == 0, answer
    report = report_of(answer)
    (stage,) = report.stages
    assert stage.stats.failed == 0
    assert stage.models["one"].requests > stage.models["two"].requests
    assert stage.stats.samples == 2 * stage.stats.requests
    assert set(endpoint.paths) == {"/endpoints/prod/invocations"}
    headers = endpoint.headers
    assert headers["x-amzn-sagemaker-target-model"] in {"one-1.tar.gz", "two-1.tar.gz"}
    assert headers["x-amzn-sagemaker-target-variant"] == "blue"
    assert headers["content-type"].startswith("application/vnd.sagemaker-triton.binary+json;json-header-size=")
    assert headers["authorization"] == signature(endpoint, headers)
    assert (report.server, report.releases) == (
        "SageMaker endpoint prod in eu-west-1",
        {"one": "one@1", "two": "two@1"},
    )
    assert not [secret for secret in (SECRET, KEY_ID) if secret in answer.stdout]


def signature(endpoint: HttpServer, headers: dict[str, str]) -> str:
    """The signature that AWS would calculate of a request: with the keys, from what arrived."""
    scope, names = headers["authorization"].partition("Credential=")[2].split(", ")[:2]
    signed = names.partition("=")[2]
    lines = [f"{name}:{headers[name]}" for name in signed.split(";")]
    request = "\n".join(["POST", *endpoint.paths, "", *lines, "", signed, headers["x-amz-content-sha256"]])
    key_id, date, region, service, kind = scope.split("/")
    text = "\n".join(
        [
            *("AWS4-HMAC-SHA256", headers["x-amz-date"], f"{date}/{region}/{service}/{kind}"),
            hashlib.sha256(request.encode()).hexdigest(),
        ]
    )
    assert (key_id, region, service) == (KEY_ID, "eu-west-1", "sagemaker")
    key = f"AWS4{SECRET}".encode()
    for part in (date, region, service, kind):
        key = hmac.digest(key, part.encode(), "sha256")
    value = hmac.digest(key, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={signed}, Signature={value}"


@pytest.mark.usefixtures("releases")
def test_refusals_are_failures_by_kind(loadtest: Command, endpoint: HttpServer) -> None:
    """Throttling, and an answer of the container that is an error, are counted once each, and never sent again."""
    kinds = (
        aws_error("ThrottlingException", 400, "Rate exceeded"),
        aws_error("ModelError", 424, "Received server error", OriginalStatusCode=507, OriginalMessage="no memory"),
        ANSWER,
    )
    endpoint.answer = lambda number: kinds[number % 3] if number else ANSWER
    answer = loadtest("one", "--endpoint", "prod", *BRIEF)
    assert answer.status == 0, answer
    (stage,) = report_of(answer).stages
    failures = {failure.kind: (failure.first, failure.count) for failure in stage.failures}
    assert {kind: first for kind, (first, _) in failures.items()} == {
        "ThrottlingException": "Rate exceeded",
        "ModelError 507": "no memory",
    }
    thirds = [count for _, count in failures.values()] + [stage.stats.answered]
    assert max(thirds) - min(thirds) <= 2


@pytest.mark.usefixtures("releases")
def test_sigterm_ends_in_a_report(endpoint: HttpServer, tmp_path: Path) -> None:
    """As Ctrl-C does: of what was measured until then, with its exit code."""
    command = [*COMMAND, "loadtest", "one", "--endpoint", "prod", "--users", "2", "--seconds", "300", *BRIEF[4:]]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as process:

        def answer(number: int) -> Response:
            if number == SOME_REQUESTS:
                process.terminate()
            return ANSWER

        endpoint.answer = answer
        stdout, _ = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 130
    report = LoadReport.model_validate_json(stdout)
    assert report.ending == "interrupted"
    assert report.stages[0].stats.requests > 0


NOT_FOUND = aws_error("ValidationError", 400, "Endpoint prod of account 123456789012 not found.")
THROTTLED = aws_error("ThrottlingException", 400, "Rate exceeded")
REFUSED = {
    "no endpoint": (NOT_FOUND, {}, 2, ("endpoint prod in us-east-1 does not exist", "check its name and --region")),
    "throttled": (THROTTLED, {}, 9, ("endpoint prod in us-east-1 throttles requests",)),
    "no credentials": (Response(), {"AWS_ACCESS_KEY_ID": ""}, 9, ("no usable AWS credentials", "AWS_PROFILE")),
    "no profile": (Response(), {"AWS_PROFILE": "nope"}, 2, ("nope", "aws configure list-profiles")),
    "not reached": (Response(), {"AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": "http://127.0.0.1:1"}, 9, ("is not reached",)),
}


@pytest.mark.usefixtures("releases")
@pytest.mark.parametrize(("response", "variables", "status", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_comes_before_any_load(
    loadtest: Command,
    endpoint: HttpServer,
    monkeypatch: pytest.MonkeyPatch,
    response: Response,
    variables: dict[str, str],
    status: int,
    says: tuple[str, ...],
) -> None:
    """One message, from one request at most."""
    endpoint.answer = lambda _: response
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check_refusal(loadtest("one", "--endpoint", "prod", *BRIEF), status, says)
    assert endpoint.requests <= 1


WRONG: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "no release": (("three", "--endpoint", "prod"), 7, ("three",)),
    "no model": (("--endpoint", "prod"), 2, ("no model is named",)),
    "region without an endpoint": (("one", "--region", "eu-west-1"), 2, ("--region goes with --endpoint",)),
    "one archive of two": (("one", "two", "--endpoint", "prod", "--target-model", "a.tar.gz"), 2, ("of 2 models",)),
    "gRPC": (("one", "--endpoint", "prod", "--protocol", "grpc"), 2, ("has no protocol grpc",)),
    "headers": (("one", "--endpoint", "prod", "--header", "A: b"), 2, ("takes no headers",)),
    "no name of an endpoint": (("one", "--endpoint", "a_b"), 2, ("cannot be the name of an endpoint",)),
    "a front end with a region": (
        ("one", "--url", "http://127.0.0.1:1/invocations", "--region", "eu-west-1"),
        2,
        ("has no region",),
    ),
    "no front end": (("one", "--url", "http://127.0.0.1:1/invocations"), 9, ("the front end at", "--sagemaker")),
}


@pytest.mark.usefixtures("releases")
@pytest.mark.parametrize(("words", "status", "says"), WRONG.values(), ids=WRONG.keys())
def test_wrong_endpoint_is_refused(
    loadtest: Command, words: tuple[str, ...], status: int, says: tuple[str, ...]
) -> None:
    check_refusal(loadtest(*words, "--json"), status, says)


def test_endpoint_file_names_models(loadtest: Command, net_repository: Path, tmp_path: Path) -> None:
    """Its name, region, repository and models, whose kept inputs are sent; a dry run sends nothing."""
    variant = {"models": ["net@1"], "instance_type": "ml.c5.xlarge"}
    path = write_endpoint(tmp_path, repository=str(net_repository), variant=variant)
    shown = loadtest("--endpoint", path, "--users", "1", "--dry-run")
    assert shown.status == 0, shown
    assert "server   endpoint bert in us-east-1, with net@1\nnet@1: 64 requests of x 1x3x64 to 8x3x64" in shown.stdout
    assert "the inputs that net@1 keeps" in shown.stdout


@pytest.fixture(scope="module")
def running(
    installation: Installation, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FrontEnd, Path]]:
    """A real multi-model front end with two releases, and the folder of their repository."""
    folder = tmp_path_factory.mktemp("served")
    repository = ModelRepository(folder / "artifacts" / "repository")
    for model in ("one", "two"):
        publish_onnx(repository, folder / "sources", model)
    request = PackageRequest(("one", "two"), multi_model=True)
    with (
        unpacked_archives(repository, folder, request) as archives,
        front_end(None, installation, folder / "front-end.log", site=site) as server,
    ):
        for name, unpacked in archives.items():
            assert server.load(name.partition("-")[0], unpacked).status == 200
        yield server, folder / "artifacts" / "repository"


@pytest.mark.services
@pytest.mark.xdist_group("loadtest")
@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_real_front_end(loadtest: Command, running: tuple[FrontEnd, Path], encoding: str) -> None:
    """Two models of a multi-model front end get requests by weight, binary and as JSON."""
    server, repository = running
    place = ("--endpoint", "local", "--url", f"http://{server.address}", "--repository", repository)
    archives = ("--target-model", "one=one", "--target-model", "two=two")
    answer = loadtest("one=3", "two", *place, *archives, "--encoding", encoding, *BRIEF)
    assert answer.status == 0, answer
    report = report_of(answer)
    (stage,) = report.stages
    assert stage.stats.failed == 0
    assert stage.models["one"].requests > stage.models["two"].requests > 0
    assert report.server == f"SageMaker front end http://{server.address}"


@pytest.mark.services
@pytest.mark.xdist_group("loadtest")
def test_invocations_url_is_front_end(loadtest: Command, running: tuple[FrontEnd, Path]) -> None:
    """The path names the model; one that is not loaded is refused before the load, with what to type."""
    server, repository = running
    for name, status in (("one", 0), ("three", 8)):
        url = f"http://{server.address}/models/{name}/invoke"
        answer = loadtest("one", url, "--repository", repository, *BRIEF)
        assert answer.status == status, answer
    check_refusal(answer, 8, ("refused a request to one (404)", "check that three is a model that is loaded there"))
