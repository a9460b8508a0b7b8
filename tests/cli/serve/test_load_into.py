"""`plansmith compile --load-into`: a running Triton takes the version, or nothing is left of it to be seen."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import find_installation

from ...support.cli.command import CommandLine, check_refusal
from ...support.triton.followed import Followed
from ..conftest import Compiled


@pytest.fixture
def server(finished: Compiled) -> Followed:
    """`plansmith serve --follow` on the repository of the finished compile, to be entered."""
    try:
        find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    return Followed(finished.folder / "artifacts" / "repository")


@pytest.mark.slow
def test_standing_release_is_loaded(server: Followed, finished: Compiled, run: CommandLine) -> None:
    """A release that stands is loaded and a dry run says where."""
    with server:
        server.wait_for_models("tiny")
        address = f"grpc://{server.grpc_url}"
        planned = run(*finished.command, "--load-into", address, "--dry-run", "--json")
        assert planned.document["plan"]["publish"].endswith(f", and be loaded into {address}")
        server.triton.unload(Path("tiny"))
        answer = run(*finished.command, "--load-into", address, "--json")
        assert (answer.status, answer.document["version"], answer.document["unchanged"]) == (0, 1, True), answer.stderr
        assert server.triton.ready("tiny") == [1]
        # A server that reads another repository has not what it is told to load.
        shutil.copytree(finished.folder / "artifacts", finished.folder / "others", symlinks=True)
        arguments = (*finished.command, "--name", "theirs", "--artifacts", "others", "--load-into", address, "--json")
        refused = run(*arguments)
    fragments = (
        "theirs · publish",
        "does not load theirs",
        "version 1 of theirs was withdrawn",
        "shown no version of it",
    )
    check_refusal(refused, 8, fragments)
    shown = run("show", "theirs", "--repository", "others/repository")
    assert f"not shown: withdrawn: the Triton at {address} does not load theirs" in shown.stdout, shown


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=" ".join)
def test_missing_server_ends_compile_early(options: tuple[str, ...], run: CommandLine, models: Path) -> None:
    """A server that is not there ends the compile before it begins."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        answer = run("compile", f"hf:{models / 'bert'}", "--load-into", address, "--json", *options)
    check_refusal(answer, 9, (f"the Triton at {address} cannot be asked", "see that it runs"))
    assert "export" not in answer.stderr
    assert not (run.folder / "artifacts" / "cache").exists()


def test_address_with_secrets_refused(run: CommandLine, models: Path) -> None:
    """An address with secrets is refused, as a spec is written into the release."""
    answer = run("compile", f"hf:{models / 'bert'}", "--load-into", "https://me:secret@host", "--json")
    check_refusal(answer, 2, ("no address of a Triton: secrets belong", "PLANSMITH_TRITON_HEADER"))


def test_server_takes_one_target(run: CommandLine, models: Path) -> None:
    """One server cannot load the releases of several targets."""
    targets = ("--target", "local-cpu", "--target", "triton-26.08-cpu")
    answer = run("compile", f"hf:{models / 'bert'}", *targets, "--load-into", "http://127.0.0.1:1", "--json")
    check_refusal(answer, 2, ("'load_into': a server reads the repository of one target",))
