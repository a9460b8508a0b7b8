"""`plansmith sagemaker invoke` as a person types it."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.cli.sagemaker.invoke import invoke_command
from plansmith.data.reference import read_case
from plansmith.sagemaker.selection import PackageRequest
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.sagemaker.front_end import front_end, unpacked_archives
from ...support.sagemaker.http_server import HttpAnswer, aws_error, http_server
from ...support.sagemaker.releases import publish_ensemble
from ...support.triton.installed import installation, site
from ..conftest import Compiled

__all__ = ["installation", "site"]

CONFIG = """
max_batch_size: 4
input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "embedding" data_type: TYPE_FP32 dims: [ 16 ] }
"""


@pytest.fixture
def invoke(run: InProcess) -> Any:
    """The command, which knows a model of texts by its configuration."""
    (run.folder / "texts").mkdir()
    (run.folder / "texts" / "config.pbtxt").write_text(CONFIG)
    return lambda *arguments: run("sagemaker", "invoke", "prod", "--interface", "texts/config.pbtxt", *arguments)


def vectors(rows: int) -> HttpAnswer:
    output = {"name": "embedding", "datatype": "FP32", "shape": [rows, 16], "data": [1] * 16 * rows}
    return HttpAnswer(body=json.dumps({"model_version": "1", "outputs": [output]}).encode())


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.xdist_group("sagemaker")
def test_packaged_release(run: InProcess, installation: Installation, site: Path) -> None:
    """A release that is packaged and served is asked by its name, its archive and its manifest, as one of many too."""
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    for _ in range(2):
        publish_ensemble(repository, run.folder, "whole")
    single, multi = PackageRequest(("whole@2",)), PackageRequest(("whole@2",), multi_model=True)
    variables = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "whole"}
    with unpacked_archives(repository, run.folder / "single", single) as unpacked:
        (root,) = unpacked.values()
        (archive,) = (run.folder / "single").rglob("*.tar.gz")
        with front_end(root, installation, run.folder / "log", variables, site) as running:
            for model in (
                ("--model", "whole@2"),
                ("--archive", archive, "--model", "whole"),
                ("--interface", repository.release("whole", 2) / "manifest.json"),
                ("--model", "whole", "--encoding", "json", "--inference-id", "order-7"),
            ):
                url = f"http://{running.address}"
                answer = run("sagemaker", "invoke", "prod", *model, "--input", "x=[[1],[2]]", "--url", url)
                assert answer.status == 0, answer
                assert answer.stdout.splitlines()[:2] == ["whole, version 2, answered", "  whole: int64 [2, 1]"]
    with (
        unpacked_archives(repository, run.folder / "multi", multi) as unpacked,
        front_end(None, installation, run.folder / "multi.log", site=site) as running,
    ):
        ((name, root),) = unpacked.items()
        command: tuple[str, ...] = (
            "sagemaker",
            "invoke",
            "many",
            "--model",
            "whole",
            "--input",
            "x=1",
            "--target-model",
            name,
        )
        command += ("--url", f"http://{running.address}", "--json")
        check_refusal(run(*command), 8, ("(404)", f"{name} is not loaded"))
        assert running.load(name, root, target_model=name).status == 200
        assert run(*command).document["outputs"]["whole"]["data"] == [[2]]


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.xdist_group("sagemaker")
def test_check(run: InProcess, compiled: Compiled, installation: Installation, site: Path, tmp_path: Path) -> None:
    """--check compares the answer with the release: another release is found out, a manifest alone gets less."""
    repository = ModelRepository(compiled.folder / "artifacts" / "repository")
    shutil.copytree(repository.root / "tiny", tmp_path / "archive" / "tiny")
    copy = tmp_path / "other"
    for suffix in ("", ".plansmith"):
        shutil.copytree(f"{repository.root}{suffix}", f"{copy}{suffix}", symlinks=True)
    release = ModelRepository(copy).release("tiny", 1)
    for case in ModelRepository(copy).manifest("tiny", 1).onnx.reference.cases:
        stored = read_case(case, release)
        arrays: dict[str, Any] = {f"input:{name}": array for name, array in stored.feed.items()}
        arrays |= {f"output:{name}": array.astype(np.float32) + 0.1 for name, array in stored.answer.items()}
        (release / case.file).unlink()
        np.savez(release / case.file, rows=stored.rows, **arrays)
    (tmp_path / "manifest.json").write_bytes((release / "manifest.json").read_bytes())
    with front_end(tmp_path / "archive", installation, tmp_path / "log", site=site) as running:
        command = ("sagemaker", "invoke", "prod", "--check", "--url", f"http://{running.address}")
        answer = run(*command, "--model", "tiny", "--repository", repository.root)
        beginning = "tiny, version 1, answered the request 'single' of its release within the tolerances of the release"
        assert answer.stdout.startswith(beginning), answer
        wrong = run(*command, "--model", "tiny", "--repository", copy, "--json")
        check_refusal(wrong, 8, ("'single' of its release is wrong", "output 'logits': "))
        document = run(*command, "--interface", tmp_path / "manifest.json", "--json").document
        assert (document["compared"], document["request"]) == (False, "a random request")


def test_texts(invoke: Any, tmp_path: Path) -> None:
    """Texts are rows of one request, and the answer goes to the terminal or a file."""
    with http_server(vectors(3)) as server:
        options = ("--text", "a cat", "--text", "a dog", "--text", "ä", "--url", server.url)
        lines = invoke(*options).stdout.splitlines()
        assert lines[:2] == ["texts, version 1, answered", "  embedding: float32 [3, 16]"]
        assert lines[2:] == ["    norm 4.0000 [1. 1. 1. ... 1. 1. 1.]"] * 3
        assert invoke(*options, "--output", "found.npz").status == 0
    assert np.load(tmp_path / "found.npz")["embedding"].shape == (3, 16)


@pytest.mark.usefixtures("aws")
def test_aws(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variant that answered is shown; what AWS refuses has a message and a remedy."""
    answer = HttpAnswer(200, vectors(1).body, {"x-Amzn-Invoked-Production-Variant": "blue"})
    options = ("--text", "a cat", "--encoding", "json", "--region", "eu-west-1")
    with http_server(answer, answer, aws_error("ValidationError", "Endpoint prod of account 1 not found.")) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", server.url)
        assert invoke(*options).stdout.splitlines()[0] == "texts, version 1 of variant blue, answered"
        assert invoke(*options, "--json").document["variant"] == "blue"
        check_refusal(invoke(*options, "--json"), 2, ("endpoint prod in eu-west-1 does not exist", "--region"))


def test_attempts(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is sent as often as --attempts allows."""
    monkeypatch.setattr("plansmith.triton.client.sagemaker.client._sleep", lambda _: None)
    unavailable = HttpAnswer(503)
    for attempts, status in ((3, 0), (2, 8)):
        with http_server(unavailable, unavailable, vectors(1)) as server:
            answer = invoke("--text", "a cat", "--url", server.url, "--attempts", attempts, "--json")
        assert (answer.status, len(server.paths)) == (status, attempts)
    assert "(503), 2 times" in answer.document["message"]


def test_dry_run(invoke: Any) -> None:
    """A dry run shows the headers and sizes of all parts, and sends nothing."""
    answer = invoke("--text", "a cat", "--target-variant", "canary", "--dry-run")
    first, content_type, variant = answer.stdout.splitlines()
    size = int(first.split()[3])
    assert first == f"request to prod: {size} bytes, not sent"
    head = int(content_type.rpartition("=")[2])
    assert content_type.startswith("  Content-Type: application/vnd.sagemaker-triton.binary+json;json-header-size=")
    assert size == head + 4 + len("a cat")
    assert variant == "  X-Amzn-SageMaker-Target-Variant: canary"
    document = invoke(*("--text", "a") * 9, "--encoding", "json", "--dry-run", "--json").document
    assert [request["headers"] for request in document["requests"]] == [{"Content-Type": "application/json"}] * 3


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, ("what the model behind prod takes", "--model", "--archive", "--interface")),
        (("cat.jpg", "--model", "x"), 2, ("unexpected extra argument (cat.jpg)",)),
        (("--model", "other"), 7, ("there is no model repository",)),
        (("--interface", "absent.json"), 2, ("absent.json cannot be read",)),
        (("--interface", "absent.json", "--model", "x"), 2, ("leave --archive and --model out",)),
        (("--archive", "absent.tar.gz"), 2, ("absent.tar.gz cannot be read",)),
        (("--interface", "texts/config.pbtxt", "--check"), 2, ("--check sends a request of its own",)),
        (("--interface", "texts/config.pbtxt", "--output", "a.txt"), 2, ("neither .npz nor .json",)),
        (("--interface", "texts/config.pbtxt", "--input", "x=1"), 2, ("no input 'x'", "text: string [batch, 1]")),
    ],
)
@pytest.mark.usefixtures("invoke")
def test_refusals(run: InProcess, arguments: tuple[str, ...], status: int, message: tuple[str, ...]) -> None:
    """What cannot be asked is refused before anything is sent."""
    check_refusal(run("sagemaker", "invoke", "prod", *arguments, "--text", "a cat", "--json"), status, message)


def test_examples_of_help() -> None:
    """The examples of the help are command lines that it takes."""
    lines = [line.strip() for line in str(invoke_command.epilog).splitlines()]
    examples = [shlex.split(line)[3:] for line in lines if line.startswith("plansmith sagemaker invoke ")]
    assert len(examples) == 7
    for arguments in examples:
        invoke_command.make_context("invoke", arguments)
